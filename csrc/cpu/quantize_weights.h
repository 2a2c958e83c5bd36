// Rounds float weights to 8 or 4 bits while they are packed.
//
// Per column and group of 32, with values w:
//   Q8_0  d = max|w| / 127; q = w * (1 / d), to nearest, ties away from zero. ggml's arithmetic, and its bytes.
//   Q4_1  w ~= d * q + m with q in 0 .. 15: of the grids tried, the one with the least sum of squared errors. Tried are grids that
//         divide max - min into 10 .. 17 steps, so that weights which were on a grid of 4 bits before find it again, and two
//         refinements of each that has 14 steps or more: for its q, the d and m of least squares.
// Each operation is rounded by itself, per lane and in one order, so the bytes are the same on every ISA level and for any
// number of threads. Where K ends inside a group, the rest of it repeats the row's last value: activations are zero there.
#pragma once

#include <cstdint>

#include "gemm.h"

namespace OCTAVO_NS {

constexpr float kMostWeight = 65504.0f;  // of magnitude: what a float16 scale or minimum can stand for

inline bool can_quantize_to(WeightFormat format) { return format == WeightFormat::kQ8_0 || format == WeightFormat::kQ4_1; }

// Round panels [panel_begin, panel_end) to a format of can_quantize_to; rows[n] are the file's floats of column n, in the format
// `source`. Return an n whose values are not all within +- kMostWeight (NaN is not), or -1; what is written then is undefined.
int64_t quantize_panels(WeightFormat format, WeightFormat source, const uint8_t* const* rows, int64_t N, int64_t K, uint8_t* data,
                        int64_t panel_begin, int64_t panel_end, uint8_t* scratch);  // panel_bytes(source, K), 64-byte aligned

}  // namespace OCTAVO_NS
