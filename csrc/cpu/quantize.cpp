// Rounds activations to int8 blocks.
#include <cfloat>

#include "act_block.h"
#include "simd.h"
#include "smallest_scale.h"

namespace OCTAVO_NS {

namespace {

// `count` of the group's values exist; the rest are zeros.
void quantize_group(const float* x, int count, ActBlock* out) {
  const F32 first = count >= 16 ? load(x) : load_first(x, count);
  const F32 second = count >= 32 ? load(x + 16) : count > 16 ? load_first(x + 16, count - 16) : zero();
  const float scale = largest_magnitude(first, second) / 127.0f;
  *out = ActBlock{};
  out->scale = scale >= kSmallestScale || scale != scale ? scale : 0.0f;
  if (!(out->scale > 0.0f && out->scale <= FLT_MAX)) {  // a NaN or infinity makes its row's outputs NaN, and no other's
    out->scale_sum = out->scale * 0.0f;
    return;
  }
  const F32 q_first = round_nearest(div(first, set1(scale))), q_second = round_nearest(div(second, set1(scale)));
  store_i8(out->q, q_first);
  store_i8(out->q + 16, q_second);
  const int32_t sum_first = (int32_t)reduce_add(q_first), sum_second = (int32_t)reduce_add(q_second);  // exact
  const int32_t sum = sum_first + sum_second;
  out->scale_sum = scale * (float)sum;
  out->start_zp8 = -8 * sum;
  out->start_zp16 = -16 * sum;
  out->start_zp128 = -128 * sum;
  out->start_zp32[0] = -32 * sum_first;
  out->start_zp32[1] = -32 * sum_second;
}

}  // namespace

void quantize_rows(const float* x, ActBlock* out, int64_t rows, int64_t K, int64_t ldx, int64_t ldo) {
  for (int64_t r = 0; r < rows; r++, x += ldx, out += ldo) {
    for (int64_t k = 0; k < K; k += kGroup) quantize_group(x + k, K - k < kGroup ? (int)(K - k) : kGroup, out + k / kGroup);
  }
}

}  // namespace OCTAVO_NS
