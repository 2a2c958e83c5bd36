// Ops whose rows are independent: norms, rope, gates, sums. All take a half-open range of rows.
#pragma once

#include <cstdint>

#include "gemm.h"
#include "isa.h"

namespace OCTAVO_NS {

// y = x / sqrt(mean(x^2) + eps) * w, over `heads` consecutive vectors of E values per row. Zhang & Sennrich 2019, arXiv:1910.07467 eq. 4.
void rms_norm(const float* x,  // [T, heads * E]  row stride ldx
              const float* w,  // [E]
              float* y,        // [T, heads * E]  row stride ldy; may alias x
              int64_t heads, int64_t E, float eps, int64_t ldx, int64_t ldy, int64_t row_begin, int64_t row_end);

// Rotate the first 2 * half dims of each head. table[p] holds cos then sin of `half` angles. Half-split pairs (i, i + half), or
// neighbours (2i, 2i + 1) if interleaved. Su et al. 2021, arXiv:2104.09864.
void rope(float* x,                // [T, heads * D]  row stride ldx, in place
          const float* table,      // [max positions, 2 * half]
          const int32_t* positions,  // [T]
          int64_t heads, int64_t D, int64_t half, bool interleaved, int64_t ldx, int64_t row_begin, int64_t row_end);

enum class Gate : int32_t { kSilu = 0, kGeluTanh = 1, kSigmoid = 2 };

// y = x * gate(g); g has E columns, or one for the whole row. y may be x.
void mul_by_gate(const float* x, const float* g, float* y, Gate gate, int64_t E, int64_t gate_width, int64_t ldx, int64_t ldg,
                 int64_t ldy, int64_t row_begin, int64_t row_end);

// y = gate(x[:, 0:F]) * x[:, F:2F].
void gated_mul(const float* x, float* y, Gate gate, int64_t F, int64_t ldx, int64_t ldy, int64_t row_begin, int64_t row_end);

void add_rows(const float* a, const float* b, float* y, int64_t E, int64_t lda, int64_t ldb, int64_t ldy, int64_t row_begin,
              int64_t row_end);
void mul_rows(const float* a, const float* b, float* y, int64_t E, int64_t lda, int64_t ldb, int64_t ldy, int64_t row_begin,
              int64_t row_end);
void scale_rows(const float* x, float* y, float factor, int64_t E, int64_t ldx, int64_t ldy, int64_t row_begin, int64_t row_end);
// y = cap * tanh(x / cap).
void softcap_rows(const float* x, float* y, float cap, int64_t E, int64_t ldx, int64_t ldy, int64_t row_begin, int64_t row_end);
// y[i] = x[rows[i]].
void gather_rows(const float* x, const int32_t* rows, float* y, int64_t E, int64_t ldx, int64_t ldy, int64_t row_begin,
                 int64_t row_end);
// y[t] = scale * table row token_ids[t].
void embedding(const PackedMatrix& table, const int32_t* token_ids, float scale, float* y, int64_t ldy, int64_t row_begin,
               int64_t row_end);

}  // namespace OCTAVO_NS
