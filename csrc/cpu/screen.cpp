#include "screen.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "pack_layout.h"
#include "simd.h"

namespace OCTAVO_NS {

namespace {

using Exact = Layout<WeightFormat::kQ8_0>;
using Top = Layout<WeightFormat::kQ8_Top>;

constexpr float kInfinity = __builtin_inff();
constexpr float kLargest = 1e30f;  // estimates above may be infinite as logits

// The lines of a group's upper six bits from its lines of bytes. Loops over a whole line each, for the compiler to make vectors of.
void write_top(const uint8_t* lines, uint8_t* out) {
  uint8_t top[8][kLineBytes];
  for (int j = 0; j < 8; j++) {
    for (int i = 0; i < kLineBytes; i++) top[j][i] = lines[kLineBytes * j + i] >> 2;
  }
  for (int j = 0; j < 4; j++) {
    for (int i = 0; i < kLineBytes; i++) out[kLineBytes * j + i] = (uint8_t)((top[j][i] & 15) | top[j + 4][i] << 4);
  }
  for (int h = 0; h < 2; h++) {
    const auto* four = top + 4 * h;
    uint8_t* high = out + Top::kHighPlane + kLineBytes * h;
    for (int i = 0; i < kLineBytes; i++)
      high[i] = (uint8_t)(four[0][i] >> 4 | four[1][i] >> 4 << 2 | four[2][i] >> 4 << 4 | four[3][i] >> 4 << 6);
  }
}

// Per column the sum of (2 * low - 3)^2 over a group: 9 for low bits that are equal, 1 for others.
void sum_squares(const uint8_t* lines, float* sums) {
  uint8_t differing[kLineBytes] = {};
  for (int j = 0; j < 8; j++) {
    for (int i = 0; i < kLineBytes; i++) {
      const uint8_t q = lines[kLineBytes * j + i];
      differing[i] = (uint8_t)(differing[i] + ((q ^ q >> 1) & 1));
    }
  }
  for (int c = 0; c < kPanelColumns; c++) {
    const uint8_t* four = differing + 4 * c;
    sums[c] = (float)(9 * kGroup - 8 * (four[0] + four[1] + four[2] + four[3]));
  }
}

double length_of(const ActBlock* x, int64_t groups) {
  double squares = 0.0;
  for (int64_t g = 0; g < groups; g++) {
    int32_t sum = 0;
    for (int k = 0; k < kGroup; k++) sum += x[g].q[k] * x[g].q[k];
    squares += (double)x[g].scale * (double)x[g].scale * sum;
  }
  return std::sqrt(squares);
}

// The estimates of a panel; past the last column 0.
OCTAVO_INLINE F32 load_panel(const float* logits, int64_t columns) {
  return columns >= kPanelColumns ? load(logits) : load_first(logits, (int)columns);
}

}  // namespace

int64_t Screen::num_bytes(const PackedMatrix& exact) {
  return OCTAVO_NS::num_panels(exact.N) * (panel_bytes(WeightFormat::kQ8_Top, exact.K) + kPanelColumns * (int64_t)sizeof(float)) + kPackedSlack;
}

Screen::Screen(const PackedMatrix& exact)
    : exact_(exact),
      top_{nullptr, exact.N, exact.K, panel_bytes(WeightFormat::kQ8_Top, exact.K), WeightFormat::kQ8_Top},
      memory_(num_bytes(exact)) {
  top_.data = memory_.data();
  errors_ = (float*)(memory_.data() + num_panels() * top_.panel_bytes + kPackedSlack);
}

void Screen::make(int64_t panel_begin, int64_t panel_end) {
  const int64_t groups = num_groups(exact_.K);
  // Relative error of a float sum of 5 terms a group, each rounded twice, and of those they are made of: an upper bound, times two. The
  // terms add up to at most 2.5 times the length of the row and 6 times that of its low bits; no |w| is above 128.
  const double rounding = (double)(5 * groups + 16) * 0x1p-23, longest_group = 128 * std::sqrt((double)kGroup);
  for (int64_t p = panel_begin; p < panel_end; p++) {
    const uint8_t* in = exact_.data + p * exact_.panel_bytes;
    uint8_t* out = memory_.data() + p * top_.panel_bytes;
    float scale_squares[kPanelColumns] = {}, low_squares[kPanelColumns] = {};
    for (int64_t g = 0; g < groups; g++, in += Exact::kGroupBytes, out += Top::kGroupBytes) {
      write_top(in, out);
      memcpy(out + Top::kScales, in + Exact::kScales, Exact::kScaleBytes);
      float scales[kPanelColumns], sums[kPanelColumns];
      store(scales, load_f16((const uint16_t*)(in + Exact::kScales)));
      sum_squares(in, sums);
      for (int c = 0; c < kPanelColumns; c++) {
        scale_squares[c] += scales[c] * scales[c];
        low_squares[c] += scales[c] * scales[c] * sums[c];
      }
    }
    for (int c = 0; c < kPanelColumns; c++) {
      const int64_t column = p * kPanelColumns + c;
      const double low = std::sqrt((double)low_squares[c]) / 2, longest = longest_group * std::sqrt((double)scale_squares[c]);
      errors_[column] = column < exact_.N ? (float)(1.001 * low + rounding * (2.5 * longest + 6 * low)) : kInfinity;
    }
  }
}

float Screen::threshold(const float* logits, float norm, int64_t count, float* maxima) const {
  const int64_t panels = num_panels();
  F32 best = set1(-kInfinity), wild = zero();  // 1 once an estimate was NaN or huge
  for (int64_t p = 0; p < panels; p++) {
    const F32 estimate = load_panel(logits + p * kPanelColumns, exact_.N - p * kPanelColumns);
    wild = select(cmp_gt(set1(kLargest), abs(estimate)), wild, set1(1.0f));
    const F32 low = sub(estimate, mul(load(errors_ + p * kPanelColumns), set1(norm)));
    if (count == 1) best = max(low, best);
    else maxima[p] = reduce_max(low);
  }
  if (reduce_max(wild) > 0.0f) return -kInfinity;
  if (count == 1) return reduce_max(best);
  std::nth_element(maxima, maxima + count - 1, maxima + panels, [](float a, float b) { return a > b; });
  return maxima[count - 1];
}

bool Screen::refine(const ActBlock* x, float* logits, int64_t count, std::atomic<int64_t>& budget, uint8_t* scratch) const {
  const int64_t panels = num_panels();
  const float norm = (float)length_of(x, num_groups(exact_.K));
  if (!(norm > 0.0f && norm < kLargest) || count > panels) return false;
  const float least = threshold(logits, norm, count, (float*)scratch);
  if (least == -kInfinity) return false;
  const GemmOutput out = {logits, exact_.N, nullptr, false, 0};
  for (int64_t p = 0; p < panels; p++) {
    float* panel = logits + p * kPanelColumns;
    const F32 high = fma(load(errors_ + p * kPanelColumns), set1(norm), load_panel(panel, exact_.N - p * kPanelColumns));
    if (!to_bits(cmp_ge(high, set1(least)))) {
      store(panel, set1(-kInfinity));  // never the last panel if it is not full: its bounds are infinite
      continue;
    }
    if (budget.fetch_sub(1, std::memory_order_relaxed) <= 0) return false;
    gemm_int8(exact_, x, 0, 1, out, p, p + 1, scratch);
  }
  return true;
}

}  // namespace OCTAVO_NS
