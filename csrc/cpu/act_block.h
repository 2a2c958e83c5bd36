// Quantised activations: one 64-byte block per row and group of 32 values.
#pragma once

#include <cstdint>

#include "isa.h"

namespace OCTAVO_NS {

constexpr int kGroup = 32;  // values that share one activation scale

constexpr int64_t num_groups(int64_t K) { return (K + kGroup - 1) / kGroup; }

// What an integer sum begins with instead of 0, so that unsigned weights w + zero_point need no correction afterwards:
// -zero_point * sum(q). AVX2 sums in int16, the first and the last two of every four k apart.
#if defined(OCTAVO_ISA_AVX2)
struct SumStart {
  int16_t first, last;
  int32_t total() const { return first + last; }
};
#else
struct SumStart {
  int32_t all;
  int32_t total() const { return all; }
};
#endif

// x[k] ~= scale * q[k].
struct ActBlock {
  int8_t q[kGroup];
  float scale;
  float scale_sum;  // scale * sum(q), one rounding: what a weight minimum is multiplied with
  SumStart start_zp8;
  SumStart start_zp16;
  SumStart start_zp128;    // zero on AVX2, where weights of 8 bits are signed
  SumStart start_zp32[2];  // of the first, the second 16 values
  int32_t unused;
};
static_assert(sizeof(ActBlock) == 64, "one cache line");

// The sum of the first or the second 16 values.
OCTAVO_INLINE int32_t half_sum(const ActBlock& x, int half) { return x.start_zp32[half].total() / -32; }

// Round each group of 32 of `x` to int8: scale = max|x| / 127, q = round_to_nearest_even(x * (1 / scale)).
// A group of zeros has scale 0 and q 0, and so has one whose scale would be below 2^-100: no denormals follow from it. A group
// with a NaN or infinity keeps that as its scale, so that its row's products are NaN, and no other's. Columns past K are zero.
void quantize_rows(const float* x,    // [rows, K]  row stride ldx
                   ActBlock* out,     // [rows, groups]  row stride ldo blocks
                   int64_t rows, int64_t K, int64_t ldx, int64_t ldo);

}  // namespace OCTAVO_NS
