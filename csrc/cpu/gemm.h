// Matrix products of activations with packed weights: y[r, n] = sum_k x[r, k] * w[n, k]  (+ bias[n]) (+ y[r, n]).
//
// One K order per format at every number of rows: a row's result is the same bits alone and in any batch.
#pragma once

#include <cstdint>

#include "act_block.h"
#include "isa.h"

namespace OCTAVO_NS {

enum class WeightFormat : int32_t {
  kF32 = 0, kF16 = 1, kBF16 = 2, kQ4_0 = 3, kQ4_1 = 4, kQ5_0 = 5, kQ5_1 = 6, kQ8_0 = 7, kQ4_K = 8, kQ5_K = 9, kQ6_K = 10,
  kQ2_K = 11, kQ3_K = 12, kIQ4_NL = 13, kIQ4_XS = 14, kMXFP4 = 15,
  kQ4_Z = 16,  // 4 bits with a zero point per group, as GPTQ and AWQ have them: a block is that of Q4_1, with -zero_point as its m
  kQ8_Top = 17,  // the upper six bits of Q8_0, and 1.5 for the lower two: see screen.h
};
constexpr int kNumWeightFormats = 17;  // of files; the others exist in memory only

// The format whose packed form, and kernels, serve a format: those whose values come from a table of 16 share one.
constexpr WeightFormat packed_as(WeightFormat format) {
  return format == WeightFormat::kIQ4_XS || format == WeightFormat::kMXFP4 ? WeightFormat::kIQ4_NL : format;
}

constexpr int kPanelColumns = 16;
constexpr int64_t num_panels(int64_t N) { return (N + kPanelColumns - 1) / kPanelColumns; }
// Columns of a panel that exist.
constexpr int panel_columns(int64_t N, int64_t panel) {
  const int64_t left = N - panel * kPanelColumns;
  return left < kPanelColumns ? (int)left : kPanelColumns;
}
constexpr int64_t kPackedSlack = 65536;  // readable bytes after the last panel: prefetch and over-read are legal

// A weight matrix [N, K] in panels of 16 columns (n); panel p holds columns 16p .. 16p + 15, padded with zeros past N.
struct PackedMatrix {
  const uint8_t* data;  // 64-byte aligned, num_panels(N) * panel_bytes + kPackedSlack readable
  int64_t N, K;
  int64_t panel_bytes;  // multiple of 64
  WeightFormat format;  // as packed: packed_as(format) == format
};

bool is_quantized(WeightFormat format);
int64_t panel_bytes(WeightFormat format, int64_t K);
int64_t source_row_bytes(WeightFormat format, int64_t K);  // bytes of one row in the file; -1 if K does not fit the format

// Re-tile panels [panel_begin, panel_end) of a matrix. `rows[n]` is the file's row for column n, so rows may be permuted.
void pack_panels(WeightFormat format, const uint8_t* const* rows, int64_t N, int64_t K, uint8_t* data,
                 int64_t panel_begin, int64_t panel_end);

// Row n of the matrix as floats, exactly the file's values (embedding look-up, tests).
void dequantize_row(const PackedMatrix& w, int64_t n, float* out);

// Bytes of per-thread scratch that one call of a product needs, 64-byte aligned.
int64_t gemm_scratch_bytes(WeightFormat format, int64_t K, bool activation_quantization);

struct GemmOutput {
  float* y;                 // where the columns of `first_panel` begin; row stride ldy
  int64_t ldy;
  const float* bias;        // [N] or null
  bool add;                 // y += product instead of y = product
  int64_t first_panel = 0;
};

// Quantised weights, int8 activations. Per (row, column), for groups in order:
//   t = d * scale;  acc = fma(t, float(int_dot), acc);  and with a minimum: acc = fma(m, scale_sum, acc).
// Then once: acc + bias, then + y.
void gemm_int8(const PackedMatrix& w, const ActBlock* x, int64_t ldx, int64_t rows, const GemmOutput& out,
               int64_t panel_begin, int64_t panel_end, uint8_t* scratch);

// Any weights (quantised ones are dequantised to float first), float activations. Per (row, column), k in order: acc = fma(x, w, acc).
void gemm_f32(const PackedMatrix& w, const float* x, int64_t ldx, int64_t rows, const GemmOutput& out,
              int64_t panel_begin, int64_t panel_end, uint8_t* scratch);

}  // namespace OCTAVO_NS
