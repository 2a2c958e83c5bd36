// The floating-point element types of the cache, sixteen at a time as floats.
#pragma once

#include "kv_cache.h"
#include "simd.h"

namespace OCTAVO_NS {

template <CacheDtype dtype>
struct CacheElement;

template <>
struct CacheElement<CacheDtype::kF32> {
  using Type = float;
  OCTAVO_INLINE F32 load16(const float* p) { return load(p); }
  OCTAVO_INLINE void store16(float* p, F32 x) { store(p, x); }
};

template <>
struct CacheElement<CacheDtype::kF16> {
  using Type = uint16_t;
  OCTAVO_INLINE F32 load16(const uint16_t* p) { return load_f16(p); }
  OCTAVO_INLINE void store16(uint16_t* p, F32 x) { store_f16(p, x); }
};

template <>
struct CacheElement<CacheDtype::kBF16> {
  using Type = uint16_t;
  OCTAVO_INLINE F32 load16(const uint16_t* p) { return load_bf16(p); }
  OCTAVO_INLINE void store16(uint16_t* p, F32 x) { store_bf16(p, x); }
};

}  // namespace OCTAVO_NS
