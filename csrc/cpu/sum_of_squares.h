// The sum of squares of a vector, as norms need it: its order depends on the length alone.
#pragma once

#include <cstdint>

#include "simd.h"

namespace OCTAVO_NS {

// Four accumulators of sixteen lanes.
inline float sum_of_squares(const float* x, int64_t E) {
  F32 sums[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= E; i += 4 * kLanes) {
    for (int j = 0; j < 4; j++) {
      const F32 v = load(x + i + j * kLanes);
      sums[j] = fma(v, v, sums[j]);
    }
  }
  for (; i < E; i += kLanes) {
    const F32 v = E - i >= kLanes ? load(x + i) : load_first(x + i, (int)(E - i));
    sums[0] = fma(v, v, sums[0]);
  }
  return reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

}  // namespace OCTAVO_NS
