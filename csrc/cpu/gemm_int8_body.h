// The product of int8 activations with one packed panel or a few, written once for all formats and ISA levels.
//
// A tile keeps one float sum per (row, column), a lane a column, so that no sum ever crosses lanes and every (row, column) sees
// one order of operations: groups ascending, the sequence of gemm.h in each.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "gemm_codec.h"
#include "gemm_output.h"
#include "gemm_tiles.h"

namespace OCTAVO_NS {

// MR rows x Groups::kPanels panels. out[n] is the output of panel n.
template <class Groups, int MR>
__attribute__((noinline)) void int8_tile(Groups groups, int64_t num_groups, const ActBlock* x, int64_t ldx,
                                         const PanelOutput* out) {
  using Math = typename Groups::Math;
  constexpr int NB = Groups::kPanels;
  F32 acc[MR][NB];
#pragma GCC unroll 16
  for (int r = 0; r < MR; r++) {
    for (int n = 0; n < NB; n++) acc[r][n] = zero();
  }
  for (int64_t g = 0; g < num_groups; g++, x++, groups.next()) {
    groups.prefetch_ahead();
#pragma GCC unroll 2
    for (int s = 0; s < Math::kNumScales; s++) {
      IntSum<Math> sum[MR][NB];
#pragma GCC unroll 16
      for (int r = 0; r < MR; r++) {
        for (int n = 0; n < NB; n++) sum[r][n].begin(Math::start(x[r * ldx], s));
      }
#pragma GCC unroll 8
      for (int j = 0; j < Math::kLines; j++) {
        Factor<Math::kBits> line[NB];
#pragma GCC unroll 2
        for (int n = 0; n < NB; n++) line[n] = groups.factor(n, s * Math::kLines + j);
#pragma GCC unroll 16
        for (int r = 0; r < MR; r++) {
          const FourActivations four = broadcast_four(x[r * ldx].q + 4 * (s * Math::kLines + j));
#pragma GCC unroll 2
          for (int n = 0; n < NB; n++) sum[r][n].add_line(line[n], four, j);
        }
      }
#pragma GCC unroll 2
      for (int n = 0; n < NB; n++) {
        const F32 d = groups.scale(n, s);
#pragma GCC unroll 16
        for (int r = 0; r < MR; r++) {
          const ActBlock& block = x[r * ldx];
          acc[r][n] = fma(mul(d, set1(block.scale)), sum[r][n].total(), acc[r][n]);
        }
        if constexpr (Math::kHasMinimum) {
          const F32 m = groups.minimum(n, s);
#pragma GCC unroll 16
          for (int r = 0; r < MR; r++) acc[r][n] = fma(m, set1(Math::scale_sum(x[r * ldx], s)), acc[r][n]);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < MR; r++) {
    for (int n = 0; n < NB; n++) out[n].finish(acc[r][n], r);
  }
}

template <class Groups>
using Int8Tile = void (*)(Groups, int64_t, const ActBlock*, int64_t, const PanelOutput*);

template <class Groups, int... I>
constexpr std::array<Int8Tile<Groups>, sizeof...(I)> make_int8_tiles(std::integer_sequence<int, I...>) {
  return {&int8_tile<Groups, I + 1>...};
}

// kInt8Tiles<Groups, most>[rows - 1] is the tile of that many rows.
template <class Groups, int kMost>
constexpr auto kInt8Tiles = make_int8_tiles<Groups>(std::make_integer_sequence<int, kMost>{});

// All rows with panels [panel, panel + Groups::kPanels), which each tile walks over anew: groups() begins a walk.
template <class Groups, int kMost, class MakeGroups>
void int8_panels(const PackedMatrix& w, int64_t panel, const ActBlock* x, int64_t ldx, int64_t rows, const GemmOutput& out,
                 const MakeGroups& groups) {
  for_balanced_tiles(rows, kMost, [&](int64_t begin, int64_t count) {
    const PanelOutput outs[2] = {PanelOutput(out, w, panel, begin), PanelOutput(out, w, panel + Groups::kPanels - 1, begin)};
    kInt8Tiles<Groups, kMost>[(size_t)(count - 1)](groups(), num_groups(w.K), x + begin * ldx, ldx, outs);
  });
}

// The packed bytes that are expanded next: the tiles before fetch them, each a share.
class Lookahead {
 public:
  Lookahead(const uint8_t* begin, int64_t bytes) : next_(begin), end_(begin + bytes) {}
  const uint8_t* take(int64_t bytes) {
    const uint8_t* share = next_;
    if (next_ < end_) next_ += bytes;
    return share;
  }

 private:
  const uint8_t *next_, *end_;
};

// Rows of a band: their activations stay in L2 while every expanded panel passes over them.
inline int64_t band_rows(int64_t row_bytes) {
  return std::max(kBandBytes / row_bytes / kExpandedRows, int64_t(1)) * kExpandedRows;
}

// How many expansions, of kExpandedPanels panels each, are made before their products.
inline int64_t expansions_at_once(int64_t expansion_bytes) {
  return std::clamp(kExpandedBytes / expansion_bytes, int64_t(1), kMostExpansions);
}
inline int64_t expanded_scratch_bytes(int64_t expansion_bytes) { return expansions_at_once(expansion_bytes) * expansion_bytes; }

// As many panels from `panel` on as come in whole expansions; returns the first that is left.
template <WeightFormat F>
int64_t int8_expanded(const PackedMatrix& w, const ActBlock* x, int64_t ldx, int64_t rows, const GemmOutput& out, int64_t panel,
                      int64_t panel_end, uint8_t* scratch) {
  using Expanded = ExpandedGroups<ArithmeticOf<F>, kExpandedPanels>;
  const int64_t groups = num_groups(w.K), expanded_bytes = groups * Expanded::kGroupBytes;
  const int64_t packed_bytes = kExpandedPanels * w.panel_bytes;
  const int64_t most = expansions_at_once(expanded_bytes), band = band_rows(groups * (int64_t)sizeof(ActBlock));
  while (panel + kExpandedPanels <= panel_end) {
    const int64_t count = std::min(most, (panel_end - panel) / kExpandedPanels);
    const uint8_t* packed = w.data + panel * w.panel_bytes;
    for (int64_t i = 0; i < count; i++) {
      expand_panels<F, kExpandedPanels>(packed + i * packed_bytes, w.panel_bytes, groups, scratch + i * expanded_bytes);
    }
    Lookahead lookahead(packed + count * packed_bytes, count * packed_bytes);
    for (int64_t begin = 0; begin < rows; begin += band) {
      GemmOutput band_out = out;
      band_out.y += begin * out.ldy;
      for (int64_t i = 0; i < count; i++) {
        int8_panels<Expanded, kExpandedRows>(
            w, panel + i * kExpandedPanels, x + begin * ldx, ldx, std::min(band, rows - begin), band_out,
            [&] { return Expanded(scratch + i * expanded_bytes, lookahead.take(groups * Expanded::kAheadBytes)); });
      }
    }
    panel += count * kExpandedPanels;
  }
  return panel;
}

template <WeightFormat F>
void gemm_int8_format(const PackedMatrix& w, const ActBlock* x, int64_t ldx, int64_t rows, const GemmOutput& out, int64_t panel,
                      int64_t panel_end, uint8_t* scratch) {
  using Packed = PackedGroups<F>;
  if (rows > direct_limit(Layout<F>::kValueBits)) panel = int8_expanded<F>(w, x, ldx, rows, out, panel, panel_end, scratch);
  constexpr int kMost = direct_rows(Layout<F>::kValueBits);
  for (; panel < panel_end; panel++) {
    const uint8_t* data = w.data + panel * w.panel_bytes;
    Lookahead lookahead(data + w.panel_bytes, w.panel_bytes);
    const int64_t share = num_groups(w.K) * Packed::kAheadBytes;
    int8_panels<Packed, kMost>(w, panel, x, ldx, rows, out,
                               [&] { return Packed(data, rows > kMost ? lookahead.take(share) : nullptr); });
  }
}

// A declaration of one instance; with `extern`, one that is compiled elsewhere.
#define OCTAVO_INT8_INSTANCE(F)                                                                                     \
  template void gemm_int8_format<WeightFormat::F>(const PackedMatrix&, const ActBlock*, int64_t, int64_t, const GemmOutput&, \
                                                  int64_t, int64_t, uint8_t*)

}  // namespace OCTAVO_NS
