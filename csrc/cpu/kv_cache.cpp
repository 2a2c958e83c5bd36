// Writing keys and values into the paged cache.
#include "kv_cache.h"

#include "hadamard.h"
#include "kv_cache_element.h"
#include "smallest_scale.h"

namespace OCTAVO_NS {

namespace {

constexpr float kLargestFloat16 = 65504.0f;

// `values` within the limits of float16; NaN stays. Adds how many were not.
OCTAVO_INLINE F32 saturate(F32 values, int64_t* saturated) {
  const F32 limit = set1(kLargestFloat16);
  *saturated += __builtin_popcount(to_bits(cmp_gt(abs(values), limit)));
  return min(limit, max(set1(-kLargestFloat16), values));  // NaN is the second operand, so it stays
}

OCTAVO_INLINE F32 load_some(const float* x, int64_t count) { return count >= kLanes ? load(x) : load_first(x, (int)count); }

// Round `count` values, in whole vectors past the end of `out` if need be. Returns how many saturated.
template <CacheDtype dtype>
int64_t round_values(const float* x, typename CacheElement<dtype>::Type* out, int64_t count) {
  int64_t saturated = 0;
  for (int64_t i = 0; i < count; i += kLanes) {
    F32 values = load_some(x + i, count - i);
    if constexpr (dtype == CacheDtype::kF16) values = saturate(values, &saturated);
    CacheElement<dtype>::store16(out + i, values);
  }
  return saturated;
}

// Rotate `count` values and round them to integers times *scale. Returns how many saturated before.
int64_t quantize_values(const float* x, int8_t* out, int64_t count, float* scale) {
  alignas(64) float rotated[kMaxHeadDim];
  int64_t saturated = 0;
  for (int64_t i = 0; i < count; i += kLanes) store(rotated + i, saturate(load_some(x + i, count - i), &saturated));
  hadamard(rotated, count);
  F32 most = zero();
  for (int64_t i = 0; i < count; i += kLanes) most = max_magnitude(most, load_some(rotated + i, count - i));
  *scale = reduce_magnitude(most) / 127.0f;
  if (*scale < kSmallestScale) *scale = 0.0f;
  const F32 step = set1(*scale);
  for (int64_t i = 0; i < count; i += kLanes)
    store_i8(out + i, *scale > 0.0f ? round_nearest(div(load(rotated + i), step)) : zero());  // zeros too where the scale is NaN
  return saturated;
}

template <CacheDtype dtype>
int64_t write_token(uint8_t* piece, int64_t lane, const float* k, const float* v, int64_t head_dim) {
  using Element = typename CacheElement<dtype>::Type;
  alignas(64) Element rounded[kMaxHeadDim];
  Element* keys = (Element*)piece;
  int64_t saturated = round_values<dtype>(k, rounded, head_dim);
  for (int64_t d = 0; d < head_dim; d++) keys[d * kPieceTokens + lane] = rounded[d];
  saturated += round_values<dtype>(v, rounded, head_dim);
  memcpy(keys + (kPieceTokens + lane) * head_dim, rounded, (size_t)head_dim * sizeof(Element));
  return saturated;
}

template <>
int64_t write_token<CacheDtype::kI8>(uint8_t* piece, int64_t lane, const float* k, const float* v, int64_t head_dim) {
  alignas(64) int8_t rounded[kMaxHeadDim];
  float* scales = (float*)piece;
  int8_t *keys = (int8_t*)piece + kScaleBytes, *values = keys + kPieceTokens * padded_head_dim(head_dim);
  int64_t saturated = quantize_values(k, rounded, head_dim, scales + lane);
  for (int64_t d = 0; d < head_dim; d++) keys[(d / 2 * kPieceTokens + lane) * 2 + d % 2] = rounded[d];
  saturated += quantize_values(v, rounded, head_dim, scales + kPieceTokens + lane);
  for (int64_t d = 0; d < head_dim; d++) values[(lane / 2 * padded_head_dim(head_dim) + d) * 2 + lane % 2] = rounded[d];
  return saturated;
}

template <CacheDtype dtype>
int64_t write_rows(const CacheLayer& cache, const float* k, const float* v, const int64_t* slots, int64_t ldk, int64_t ldv,
                   int64_t row_begin, int64_t row_end) {
  const int64_t D = cache.head_dim;
  int64_t saturated = 0;
  for (int64_t row = row_begin; row < row_end; row++) {
    const int64_t position = slots[row] % cache.block_size;
    uint8_t* block = cache.pool + slots[row] / cache.block_size * cache.block_bytes + cache.layer_offset;
    uint8_t* piece = block + position / kPieceTokens * cache.num_kv_heads * piece_bytes(dtype, D);
    for (int head = 0; head < cache.num_kv_heads; head++, piece += piece_bytes(dtype, D))
      saturated += write_token<dtype>(piece, position % kPieceTokens, k + row * ldk + head * D, v + row * ldv + head * D, D);
  }
  return saturated;
}

}  // namespace

int64_t kv_write(const CacheLayer& cache, const float* k, const float* v, const int64_t* slots, int64_t ldk, int64_t ldv,
                 int64_t row_begin, int64_t row_end) {
  switch (cache.dtype) {
    case CacheDtype::kF32: return write_rows<CacheDtype::kF32>(cache, k, v, slots, ldk, ldv, row_begin, row_end);
    case CacheDtype::kF16: return write_rows<CacheDtype::kF16>(cache, k, v, slots, ldk, ldv, row_begin, row_end);
    case CacheDtype::kBF16: return write_rows<CacheDtype::kBF16>(cache, k, v, slots, ldk, ldv, row_begin, row_end);
    case CacheDtype::kI8: return write_rows<CacheDtype::kI8>(cache, k, v, slots, ldk, ldv, row_begin, row_end);
  }
  return 0;
}

}  // namespace OCTAVO_NS
