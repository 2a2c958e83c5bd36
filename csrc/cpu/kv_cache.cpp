// Writing keys and values into the paged cache.
#include "kv_cache.h"

#include "kv_cache_element.h"

namespace OCTAVO_NS {

namespace {

// Round `count` values, in whole vectors past the end of `out` if need be. Returns how many saturated.
template <CacheDtype dtype>
int64_t round_values(const float* x, typename CacheElement<dtype>::Type* out, int64_t count) {
  int64_t saturated = 0;
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t left = count - i;
    F32 values = left >= kLanes ? load(x + i) : load_first(x + i, (int)left);
    if constexpr (dtype == CacheDtype::kF16) {
      const F32 limit = set1(65504.0f);
      saturated += __builtin_popcount(to_bits(cmp_gt(abs(values), limit)));
      values = min(limit, max(set1(-65504.0f), values));  // NaN is the second operand, so it stays
    }
    CacheElement<dtype>::store16(out + i, values);
  }
  return saturated;
}

template <CacheDtype dtype>
int64_t write_rows(const CacheLayer& cache, const float* k, const float* v, const int64_t* slots, int64_t ldk, int64_t ldv,
                   int64_t row_begin, int64_t row_end) {
  using Element = typename CacheElement<dtype>::Type;
  const int64_t D = cache.head_dim;
  alignas(64) Element rounded[kMaxHeadDim];
  int64_t saturated = 0;
  for (int64_t row = row_begin; row < row_end; row++) {
    if (slots[row] < 0) continue;
    const int64_t position = slots[row] % cache.block_size, lane = position % kTileTokens;
    uint8_t* block = cache.pool + slots[row] / cache.block_size * cache.block_bytes + cache.layer_offset;
    for (int head = 0; head < cache.num_kv_heads; head++) {
      Element* keys = (Element*)block + ((position / kTileTokens) * cache.num_kv_heads + head) * 2 * kTileTokens * D;
      saturated += round_values<dtype>(k + row * ldk + head * D, rounded, D);
      for (int64_t d = 0; d < D; d++) keys[d * kTileTokens + lane] = rounded[d];
      saturated += round_values<dtype>(v + row * ldv + head * D, rounded, D);
      memcpy(keys + (kTileTokens + lane) * D, rounded, (size_t)D * sizeof(Element));
    }
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
  }
  return 0;
}

}  // namespace OCTAVO_NS
