// A rotation of short vectors that spreads what is large in few elements over all, before they are rounded to int8.
#pragma once

#include "simd.h"

namespace OCTAVO_NS {

template <int S>
OCTAVO_INLINE F32 butterfly(F32 x) {  // lanes i and i + S: their sum and their difference
  const F32 sign = select(from_bits(S == 1 ? 0xaaaau : S == 2 ? 0xccccu : S == 4 ? 0xf0f0u : 0xff00u), set1(-1.0f), set1(1.0f));
  return fma(x, sign, swap_lanes<S>(x));
}

// Elements that are rotated together: the largest power of two that divides `size`.
inline int64_t hadamard_block(int64_t size) { return size & -size; }

// In place, each block by the Walsh-Hadamard matrix, whose rows are not normalised: applied twice, it multiplies by the block's size.
// `x` is read and written in whole vectors past `size`.
OCTAVO_INLINE void hadamard(float* x, int64_t size) {
  const int64_t block = hadamard_block(size);
  for (int64_t i = 0; i < size; i += kLanes) {
    F32 v = load(x + i);
    if (block > 1) v = butterfly<1>(v);
    if (block > 2) v = butterfly<2>(v);
    if (block > 4) v = butterfly<4>(v);
    if (block > 8) v = butterfly<8>(v);
    store(x + i, v);
  }
  for (int64_t stride = kLanes; stride < block; stride *= 2)
    for (int64_t i = 0; i < size; i += 2 * stride)
      for (int64_t j = i; j < i + stride; j += kLanes) {
        const F32 a = load(x + j), b = load(x + j + stride);
        store(x + j, add(a, b));
        store(x + j + stride, sub(a, b));
      }
}

}  // namespace OCTAVO_NS
