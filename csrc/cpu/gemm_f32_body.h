// The product of float activations with panels of floats. Quantised panels are dequantised: for few rows in registers, else to
// scratch first.
//
// As in gemm_int8_body.h a lane is a column. Per (row, column) there is one order: k ascending, one fma each.
#pragma once

#include <array>
#include <utility>

#include "float_panel.h"
#include "gemm_codec.h"
#include "gemm_output.h"
#include "gemm_tiles.h"

namespace OCTAVO_NS {

// MR rows x NB panels that lie panel_bytes apart.
template <WeightFormat F, int NB, int MR>
__attribute__((noinline)) void f32_tile(const uint8_t* w, int64_t panel_bytes, int64_t K, const float* x, int64_t ldx,
                                        const PanelOutput* out) {
  constexpr int kPrefetchBytes = 4096;  // per panel; tuned for one row on Zen 3
  constexpr int64_t kAhead = kPrefetchBytes / FloatPanel<F>::kBytes;
  F32 acc[MR][NB];
#pragma GCC unroll 16
  for (int r = 0; r < MR; r++) {
    for (int n = 0; n < NB; n++) acc[r][n] = zero();
  }
  int64_t prefetch_offset = kPrefetchBytes;
  int64_t k = 0;
  for (const int64_t end : {K - kAhead, K}) {
    for (; k < end; k++, x++, w += FloatPanel<F>::kBytes) {
      F32 column[NB];
#pragma GCC unroll 2
      for (int n = 0; n < NB; n++) {
        prefetch(w + n * panel_bytes + prefetch_offset);
        column[n] = FloatPanel<F>::at(w + n * panel_bytes);
      }
#pragma GCC unroll 16
      for (int r = 0; r < MR; r++) {
        const F32 value = set1(x[r * ldx]);
#pragma GCC unroll 2
        for (int n = 0; n < NB; n++) acc[r][n] = fma(value, column[n], acc[r][n]);
      }
    }
    prefetch_offset += (NB - 1) * panel_bytes;  // from the last values of a panel to the first of the one that is its turn next
  }
#pragma GCC unroll 16
  for (int r = 0; r < MR; r++) {
    for (int n = 0; n < NB; n++) out[n].finish(acc[r][n], r);
  }
}

using F32Tile = void (*)(const uint8_t*, int64_t, int64_t, const float*, int64_t, const PanelOutput*);

template <WeightFormat F, int NB, int... I>
constexpr std::array<F32Tile, sizeof...(I)> make_f32_tiles(std::integer_sequence<int, I...>) {
  return {&f32_tile<F, NB, I + 1>...};
}

// kF32Tiles<F, NB>[rows - 1] is the tile of that many rows.
template <WeightFormat F, int NB>
constexpr auto kF32Tiles = make_f32_tiles<F, NB>(std::make_integer_sequence<int, kFloatRows>{});

// All rows with panels [panel, panel + NB), which lie panel_bytes apart at `bytes`.
template <WeightFormat F, int NB>
void f32_panels(const PackedMatrix& w, const uint8_t* bytes, int64_t panel_bytes, int64_t panel, const float* x, int64_t ldx,
                int64_t rows, const GemmOutput& out) {
  for_balanced_tiles(rows, kFloatRows, [&](int64_t begin, int64_t count) {
    const PanelOutput outs[2] = {PanelOutput(out, w, panel, begin), PanelOutput(out, w, panel + NB - 1, begin)};
    kF32Tiles<F, NB>[(size_t)(count - 1)](bytes, panel_bytes, w.K, x + begin * ldx, ldx, outs);
  });
}

// 4 values of k of 16 columns, from line `j` of the group.
template <class Groups>
OCTAVO_INLINE void dequantize_line(const Groups& groups, int j, F32 out[4]) {
  using Math = typename Groups::Math;
  const F32 d = groups.scale(0, j / Math::kLines);
  line_to_f32(groups.line(0, j), out);
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    out[i] = mul(d, sub(out[i], set1((float)Math::kZeroPoint)));
    if constexpr (Math::kHasMinimum) out[i] = add(out[i], groups.minimum(0, j / Math::kLines));
  }
}

// MR rows x 1 quantised panel, each value used as it is made.
template <WeightFormat F, int MR>
__attribute__((noinline)) void f32_direct_tile(const uint8_t* panel, int64_t K, const float* x, int64_t ldx, const PanelOutput& out) {
  F32 acc[MR];
#pragma GCC unroll 4
  for (int r = 0; r < MR; r++) acc[r] = zero();
  PackedGroups<F> groups(panel);
  for (int64_t first = 0; first < K; first += kGroup, groups.next()) {
    groups.prefetch_ahead();
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
      F32 values[4];
      dequantize_line(groups, j, values);
      const int count = (int)(K - first - 4 * j < 4 ? K - first - 4 * j : 4);  // of k that exist
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) {
        if (i >= count) break;
#pragma GCC unroll 4
        for (int r = 0; r < MR; r++) acc[r] = fma(set1(x[r * ldx + first + 4 * j + i]), values[i], acc[r]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < MR; r++) out.finish(acc[r], r);
}

template <WeightFormat F, int MR>
void f32_direct_panel(const PackedMatrix& w, int64_t panel, const float* x, int64_t ldx, int64_t rows, const GemmOutput& out) {
  if constexpr (MR > 1) {
    if (rows < MR) return f32_direct_panel<F, MR - 1>(w, panel, x, ldx, rows, out);
  }
  f32_direct_tile<F, MR>(w.data + panel * w.panel_bytes, w.K, x, ldx, PanelOutput(out, w, panel, 0));
}

// The values of a panel as floats [K][16].
template <WeightFormat F>
void expand_panel_to_f32(const uint8_t* panel, int64_t K, float* out) {
  if constexpr (Layout<F>::kBits == 0) {
    for (int64_t k = 0; k < K; k++) store(out + k * kPanelColumns, FloatPanel<F>::at(panel + k * FloatPanel<F>::kBytes));
  } else {
    PackedGroups<F> groups(panel);
    for (int64_t g = 0; g < num_groups(K); g++, groups.next()) {
      groups.prefetch_ahead();
#pragma GCC unroll 8
      for (int j = 0; j < 8; j++, out += 4 * kPanelColumns) {
        F32 values[4];
        dequantize_line(groups, j, values);
        for (int i = 0; i < 4; i++) store(out + i * kPanelColumns, values[i]);
      }
    }
  }
}

// The last group is expanded as a whole.
constexpr int64_t expanded_panel_bytes(int64_t K) { return num_groups(K) * kGroup * kPanelColumns * (int64_t)sizeof(float); }
constexpr int64_t float_scratch_bytes(int64_t K) { return kFloatPanels * expanded_panel_bytes(K); }

// Panels are expanded to floats, unless they are floats already or the rows are too few to pay for it.
template <WeightFormat F, int NB>
void f32_panels_of(const PackedMatrix& w, int64_t panel, const float* x, int64_t ldx, int64_t rows, const GemmOutput& out,
                   uint8_t* scratch) {
  const uint8_t* bytes = w.data + panel * w.panel_bytes;
  if constexpr (Layout<F>::kBits == 0) {
    if (F == WeightFormat::kF32 || rows <= kFloatDirectLimit) {
      return f32_panels<F, NB>(w, bytes, w.panel_bytes, panel, x, ldx, rows, out);
    }
  }
  const int64_t expanded_bytes = expanded_panel_bytes(w.K);
  for (int n = 0; n < NB; n++) expand_panel_to_f32<F>(bytes + n * w.panel_bytes, w.K, (float*)(scratch + n * expanded_bytes));
  f32_panels<WeightFormat::kF32, NB>(w, scratch, expanded_bytes, panel, x, ldx, rows, out);
}

template <WeightFormat F>
void gemm_f32_format(const PackedMatrix& w, const float* x, int64_t ldx, int64_t rows, const GemmOutput& out, int64_t panel,
                     int64_t panel_end, uint8_t* scratch) {
  if constexpr (Layout<F>::kBits > 0) {
    if (rows <= kFloatFewRows) {
      for (; panel < panel_end; panel++) f32_direct_panel<F, kFloatFewRows>(w, panel, x, ldx, rows, out);
      return;
    }
  } else if (rows <= kFloatPairRows) {
    for (; panel + 2 <= panel_end; panel += 2) f32_panels<F, 2>(w, w.data + panel * w.panel_bytes, w.panel_bytes, panel, x, ldx, rows, out);
  }
  for (; panel + kFloatPanels <= panel_end; panel += kFloatPanels) {
    f32_panels_of<F, kFloatPanels>(w, panel, x, ldx, rows, out, scratch);
  }
  for (; panel < panel_end; panel++) f32_panels_of<F, 1>(w, panel, x, ldx, rows, out, scratch);
}

}  // namespace OCTAVO_NS
