// A panel of float weights: 16 columns of one k after another, in the file's type.
#pragma once

#include <cstdint>

#include "pack_layout.h"
#include "simd.h"

namespace OCTAVO_NS {

template <WeightFormat F>
struct FloatPanel {
  static constexpr int kBytes = kPanelColumns * Layout<F>::kInfo.block_bytes;  // from one k to the next

  OCTAVO_INLINE F32 at(const uint8_t* p) {
    if constexpr (F == WeightFormat::kF32) return load((const float*)p);
    else if constexpr (F == WeightFormat::kF16) return load_f16((const uint16_t*)p);
    else return load_bf16((const uint16_t*)p);
  }
};

// A switch's cases for all float formats: CASE(name) for each.
#define OCTAVO_FLOAT_CASES(CASE) CASE(kF32) CASE(kF16) CASE(kBF16)

}  // namespace OCTAVO_NS
