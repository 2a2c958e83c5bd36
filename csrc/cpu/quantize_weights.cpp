#include "quantize_weights.h"

#include <cstring>

#include "float_panel.h"
#include "pack_transpose.h"

namespace OCTAVO_NS {

namespace {

constexpr int kFewestSteps = 10, kMostSteps = 17, kRefinedSteps = 14;
constexpr int kRefinements = 2;
constexpr float kMostLevel = 15.0f;

// The float16 bits of 16 columns' numbers, and what they stand for.
struct Halves {
  uint16_t bits[kPanelColumns];
  F32 value() const { return load_f16(bits); }
};

OCTAVO_INLINE Halves to_halves(F32 a) {
  Halves h;
  store_f16(h.bits, a);
  return h;
}

// 1 / d, or 0 where d is 0.
OCTAVO_INLINE F32 inverse(F32 d) { return select(cmp_gt(d, zero()), div(set1(1.0f), d), zero()); }

// One group of 16 columns, rounded: byte [k][c] is w + zero_point.
struct RoundedGroup {
  uint8_t q[kGroup][kPanelColumns];
  Halves d, m;
};

OCTAVO_INLINE F32 round_half_away(F32 t) {
  const F32 magnitude = abs(t), even = round_nearest(magnitude);
  const F32 rounded = select(cmp_ge(sub(magnitude, even), set1(0.5f)), add(even, set1(1.0f)), even);
  return select(cmp_ge(t, zero()), rounded, sub(zero(), rounded));
}

void round_to_q8(const F32* w, RoundedGroup* out) {
  F32 most = zero();
  for (int k = 0; k < kGroup; k++) most = max(most, abs(w[k]));
  const F32 d = div(most, set1(127.0f));
  out->d = to_halves(d);
  const F32 factor = select(cmp_gt(out->d.value(), zero()), inverse(d), zero());
  for (int k = 0; k < kGroup; k++) {
    store_i8((int8_t*)out->q[k], round_half_away(mul(w[k], factor)));
    for (uint8_t& q : out->q[k]) q ^= 0x80;
  }
}

// w ~= d * q + m, both float16 numbers.
struct Grid {
  F32 d, m;
};

OCTAVO_INLINE Grid storable(F32 d, F32 m) { return {to_halves(max(d, zero())).value(), to_halves(m).value()}; }

OCTAVO_INLINE F32 level(F32 w, F32 m, F32 factor) {
  return round_nearest(min(max(mul(sub(w, m), factor), zero()), set1(kMostLevel)));
}

// What one look at a group through a grid tells: its error, and the sums for a better grid.
struct Fit {
  F32 error, sum_q, sum_qq, sum_qw;
};

Fit fit(const F32* w, const Grid& grid) {
  const F32 factor = inverse(grid.d);
  Fit f = {zero(), zero(), zero(), zero()};
  for (int k = 0; k < kGroup; k++) {
    const F32 q = level(w[k], grid.m, factor);
    const F32 error = sub(add(mul(grid.d, q), grid.m), w[k]);
    f.error = add(f.error, mul(error, error));
    f.sum_q = add(f.sum_q, q);
    f.sum_qq = add(f.sum_qq, mul(q, q));
    f.sum_qw = add(f.sum_qw, mul(q, w[k]));
  }
  return f;
}

// The grid of least squares for the levels that gave these sums; where all levels are the same, the one they came from.
Grid refined(const Grid& grid, const Fit& f, F32 sum_w) {
  const F32 count = set1((float)kGroup);
  const F32 determinant = sub(mul(count, f.sum_qq), mul(f.sum_q, f.sum_q));
  const Mask differ = cmp_gt(determinant, zero());
  const F32 safe = select(differ, determinant, set1(1.0f));
  const F32 d = div(sub(mul(count, f.sum_qw), mul(f.sum_q, sum_w)), safe);
  const F32 m = div(sub(mul(f.sum_qq, sum_w), mul(f.sum_q, f.sum_qw)), safe);
  return storable(select(differ, d, grid.d), select(differ, m, grid.m));
}

Grid best_grid(const F32* w) {
  F32 low = w[0], high = w[0], sum = zero();
  for (int k = 0; k < kGroup; k++) {
    low = min(low, w[k]);
    high = max(high, w[k]);
    sum = add(sum, w[k]);
  }
  const F32 range = sub(high, low);
  Grid best = {zero(), zero()};
  F32 least = set1(__builtin_inff());
  for (int steps = kFewestSteps; steps <= kMostSteps; steps++) {
    const float below = steps > (int)kMostLevel ? 0.5f * (float)(steps - (int)kMostLevel) : 0.0f;  // steps cut off at the low end
    const F32 step = div(range, set1((float)steps));
    Grid grid = storable(step, add(low, mul(set1(below), step)));
    for (int round = 0;; round++) {
      const Fit f = fit(w, grid);
      const Mask better = cmp_gt(least, f.error);
      least = select(better, f.error, least);
      best = {select(better, grid.d, best.d), select(better, grid.m, best.m)};
      if (steps < kRefinedSteps || round == kRefinements) break;
      grid = refined(grid, f, sum);
    }
  }
  return best;
}

void round_to_q4(const F32* w, RoundedGroup* out) {
  const Grid grid = best_grid(w);
  const F32 factor = inverse(grid.d);
  for (int k = 0; k < kGroup; k++) store_i8((int8_t*)out->q[k], level(w[k], grid.m, factor));
  out->d = to_halves(grid.d);
  out->m = to_halves(grid.m);
}

template <WeightFormat Source>
void load_group(const uint8_t* panel, int64_t first, int64_t K, F32* w) {
  for (int64_t k = first; k < first + kGroup; k++) {
    *w++ = FloatPanel<Source>::at(panel + (k < K ? k : K - 1) * FloatPanel<Source>::kBytes);
  }
}

void load_group(WeightFormat source, const uint8_t* panel, int64_t first, int64_t K, F32* w) {
#define OCTAVO_CASE(F) \
  case WeightFormat::F: return load_group<WeightFormat::F>(panel, first, K, w);
  switch (source) {
    OCTAVO_FLOAT_CASES(OCTAVO_CASE)
    default: return;
  }
#undef OCTAVO_CASE
}

// Bit c: a value of column c is out of range.
uint32_t unfit_columns(const F32* w) {
  uint32_t fit = 0xffff;
  for (int k = 0; k < kGroup; k++) fit &= to_bits(cmp_ge(set1(kMostWeight), abs(w[k])));
  return ~fit & 0xffff;
}

// Four rows of 16 bytes as a line: byte 4c + i is that of column c in row i.
OCTAVO_INLINE void write_line(Vector16u8 a, Vector16u8 b, Vector16u8 c, Vector16u8 d, uint8_t* line) {
  const Vector8u16 low[2] = {(Vector8u16)interleave_low(a, b), (Vector8u16)interleave_low(c, d)};
  const Vector8u16 high[2] = {(Vector8u16)interleave_high(a, b), (Vector8u16)interleave_high(c, d)};
  const Vector8u16 quarters[4] = {interleave_low(low[0], low[1]), interleave_high(low[0], low[1]),
                                  interleave_low(high[0], high[1]), interleave_high(high[0], high[1])};
  memcpy(line, quarters, sizeof quarters);
}

template <WeightFormat F>
void write_group(RoundedGroup& rounded, uint8_t* group, int columns) {
  using L = Layout<F>;
  Vector16u8 rows[kGroup];
  for (int k = 0; k < kGroup; k++) {
    memset(rounded.q[k] + columns, 0, (size_t)(kPanelColumns - columns));
    memcpy(&rows[k], rounded.q[k], sizeof rows[k]);
    if (L::kBits == 4 && k >= kGroup / 2) rows[k - kGroup / 2] |= rows[k] << 4;
  }
  for (int j = 0; j < L::kPlaneBytes / kLineBytes; j++) {
    write_line(rows[4 * j], rows[4 * j + 1], rows[4 * j + 2], rows[4 * j + 3], group + kLineBytes * j);
  }
  memcpy(group + L::kScales, rounded.d.bits, 2 * (size_t)columns);
  if (L::kHasMinimum) memcpy(group + L::kMinimums, rounded.m.bits, 2 * (size_t)columns);
}

// Return the columns that are out of range, as bits.
template <WeightFormat F>
uint32_t quantize_panel(WeightFormat source, const uint8_t* floats, int columns, int64_t K, uint8_t* panel) {
  for (int64_t g = 0; g < num_groups(K); g++) {
    F32 w[kGroup];
    load_group(source, floats, g * kGroup, K, w);
    if (const uint32_t unfit = unfit_columns(w)) return unfit;
    RoundedGroup rounded;
    if constexpr (F == WeightFormat::kQ8_0) round_to_q8(w, &rounded);
    else round_to_q4(w, &rounded);
    write_group<F>(rounded, panel + group_offset<F>(g), columns);
  }
  return 0;
}

}  // namespace

int64_t quantize_panels(WeightFormat format, WeightFormat source, const uint8_t* const* rows, int64_t N, int64_t K, uint8_t* data,
                        int64_t panel_begin, int64_t panel_end, uint8_t* scratch) {
  const int64_t bytes = panel_bytes(format, K);
  const bool to_q8 = format == WeightFormat::kQ8_0;
  for (int64_t p = panel_begin; p < panel_end; p++) {
    const int64_t first = p * kPanelColumns;
    const int columns = panel_columns(N, p);
    uint8_t* panel = data + p * bytes;
    if (columns < kPanelColumns) {
      memset(panel, 0, (size_t)bytes);
      memset(scratch, 0, (size_t)panel_bytes(source, K));
    }
    if (source == WeightFormat::kF32) transpose_rows<Vector4u32>(rows + first, columns, K, scratch);
    else transpose_rows<Vector8u16>(rows + first, columns, K, scratch);
    const uint32_t unfit = to_q8 ? quantize_panel<WeightFormat::kQ8_0>(source, scratch, columns, K, panel)
                                 : quantize_panel<WeightFormat::kQ4_1>(source, scratch, columns, K, panel);
    if (unfit) return first + __builtin_ctz(unfit);
  }
  return -1;
}

}  // namespace OCTAVO_NS
