// What every product does with a finished tile of sums: bias, then the old value, then the store.
#pragma once

#include "gemm.h"
#include "simd.h"

namespace OCTAVO_NS {

// The output of one panel: `columns` of its 16 exist.
struct PanelOutput {
  float* y;
  int64_t ldy;
  const float* bias;
  int columns;
  bool add;

  PanelOutput(const GemmOutput& out, const PackedMatrix& w, int64_t panel, int64_t row)
      : y(out.y + row * out.ldy + (panel - out.first_panel) * kPanelColumns),
        ldy(out.ldy),
        bias(out.bias ? out.bias + panel * kPanelColumns : nullptr),
        columns(panel_columns(w.N, panel)),
        add(out.add) {}

  OCTAVO_MEMBER void finish(F32 sum, int64_t row) const {
    float* p = y + row * ldy;
    if (columns == kPanelColumns) {
      if (bias) sum = OCTAVO_NS::add(sum, load(bias));
      if (add) sum = OCTAVO_NS::add(sum, load(p));
      store(p, sum);
    } else {
      if (bias) sum = OCTAVO_NS::add(sum, load_first(bias, columns));
      if (add) sum = OCTAVO_NS::add(sum, load_first(p, columns));
      store_first(p, sum, columns);
    }
  }
};

// `rows` in tiles of at most `most`, as equal as they can be: f(first row, rows in the tile).
template <class F>
inline void for_balanced_tiles(int64_t rows, int64_t most, F f) {
  const int64_t tiles = (rows + most - 1) / most;
  for (int64_t i = 0; i < tiles; i++) {
    const int64_t begin = rows * i / tiles;
    f(begin, rows * (i + 1) / tiles - begin);
  }
}

}  // namespace OCTAVO_NS
