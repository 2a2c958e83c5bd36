// Rounds activations to int8 blocks.
#include <cfloat>
#include <cstddef>

#include "act_block.h"
#include "simd.h"
#include "smallest_scale.h"

namespace OCTAVO_NS {

namespace {

// Round to q, and fill in all but the scales. Returns the sum of q.
#if defined(OCTAVO_ISA_AVX2)
int32_t round_group(F32 low, F32 high, ActBlock* out) {
  const __m256i low_pairs = _mm256_packs_epi32(_mm256_cvtps_epi32(low.lo), _mm256_cvtps_epi32(low.hi));
  const __m256i high_pairs = _mm256_packs_epi32(_mm256_cvtps_epi32(high.lo), _mm256_cvtps_epi32(high.hi));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packs works within 128-bit lanes
  const __m256i q = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low_pairs, high_pairs), order);
  _mm256_storeu_si256((__m256i*)out->q, q);

  __m256i sums = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
  sums = _mm256_add_epi16(sums, _mm256_shuffle_epi32(sums, 0x4e));
  sums = _mm256_add_epi16(sums, _mm256_shuffle_epi32(sums, 0xb1));  // every 32 bits: a SumStart of that half, zero point -1
  const __m256i swapped = _mm256_permute4x64_epi64(sums, 0x4e), both = _mm256_add_epi16(sums, swapped);
  // Where they belong in the second half of the block: both twice, nothing, the low sums, the high ones.
  const __m256i placed = _mm256_blend_epi32(_mm256_blend_epi32(both, swapped, 1 << 5), sums, 1 << 6);
  const __m256i factors = _mm256_setr_epi16(0, 0, 0, 0, -8, -8, -16, -16, 0, 0, -32, -32, -32, -32, 0, 0);
  static_assert(offsetof(ActBlock, start_zp8) == kGroup + 2 * 4 && offsetof(ActBlock, start_zp32) == kGroup + 5 * 4, "as placed");
  _mm256_storeu_si256((__m256i*)out + 1, _mm256_mullo_epi16(placed, factors));
  return _mm_cvtsi128_si32(_mm_madd_epi16(_mm256_castsi256_si128(both), _mm_set1_epi16(1)));
}
#else
int32_t round_group(F32 low, F32 high, ActBlock* out) {
  low = round_nearest(low);
  high = round_nearest(high);
  store_i8(out->q, low);
  store_i8(out->q + 16, high);
  const int32_t low_sum = (int32_t)reduce_add(low), high_sum = (int32_t)reduce_add(high);  // exact
  const int32_t sum = low_sum + high_sum;
  out->start_zp8 = {-8 * sum};
  out->start_zp16 = {-16 * sum};
  out->start_zp128 = {-128 * sum};
  out->start_zp32[0] = {-32 * low_sum};
  out->start_zp32[1] = {-32 * high_sum};
  out->unused = 0;
  return sum;
}
#endif

// `count` of the group's values exist; the rest are zeros.
void quantize_group(const float* x, int count, ActBlock* out) {
  const F32 first = count >= 16 ? load(x) : load_first(x, count);
  const F32 second = count >= 32 ? load(x + 16) : count > 16 ? load_first(x + 16, count - 16) : zero();
  const float scale = largest_magnitude(first, second) / 127.0f;
  if (!(scale >= kSmallestScale && scale <= FLT_MAX)) {  // a NaN or infinity makes its row's outputs NaN, and no other's
    *out = ActBlock{};
    out->scale = scale < kSmallestScale ? 0.0f : scale;
    out->scale_sum = out->scale * 0.0f;
    return;
  }
  const F32 steps = set1(1.0f / scale);
  const int32_t sum = round_group(mul(first, steps), mul(second, steps), out);
  out->scale = scale;
  out->scale_sum = scale * (float)sum;
}

}  // namespace

void quantize_rows(const float* x, ActBlock* out, int64_t rows, int64_t K, int64_t ldx, int64_t ldo) {
  for (int64_t r = 0; r < rows; r++, x += ldx, out += ldo) {
    for (int64_t k = 0; k < K; k += kGroup) quantize_group(x + k, K - k < kGroup ? (int)(K - k) : kGroup, out + k / kGroup);
  }
}

}  // namespace OCTAVO_NS
