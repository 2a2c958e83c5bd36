#include "delta_panels.h"

#include "simd.h"

namespace OCTAVO_NS {

namespace {

constexpr int kVectorsAtOnce = 6;  // their sums, a row of a panel and a factor just fit the sixteen registers of AVX2
constexpr int kRowsAtOnce = 4;     // of a fold

template <int V, int P>
void multiply(const float* panels, int64_t K, const float* x, float* y) {
  F32 sums[V][P];
  for (int v = 0; v < V; v++)
    for (int p = 0; p < P; p++) sums[v][p] = zero();
  for (int64_t k = 0; k < K; k++) {
    F32 row[P];
    for (int p = 0; p < P; p++) row[p] = load(panels + (p * K + k) * kLanes);
    for (int v = 0; v < V; v++) {
      const F32 factor = set1(x[v * K + k]);
      for (int p = 0; p < P; p++) sums[v][p] = fma(factor, row[p], sums[v][p]);
    }
  }
  for (int v = 0; v < V; v++)
    for (int p = 0; p < P; p++) store(y + (v * kPanelsAtOnce + p) * kLanes, sums[v][p]);
}

// One panel, in blocks of vectors of about the same size.
void multiply_panel(const float* panel, int64_t K, const float* x, int64_t num_vectors, float* y) {
  const int64_t num_blocks = (num_vectors + kVectorsAtOnce - 1) / kVectorsAtOnce;
  for (int64_t block = 0; block < num_blocks; block++) {
    const int64_t begin = num_vectors * block / num_blocks, end = num_vectors * (block + 1) / num_blocks;
    const float* vectors = x + begin * K;
    float* out = y + begin * kPanelsAtOnce * kLanes;
    switch (end - begin) {
      case 1: multiply<1, 1>(panel, K, vectors, out); break;
      case 2: multiply<2, 1>(panel, K, vectors, out); break;
      case 3: multiply<3, 1>(panel, K, vectors, out); break;
      case 4: multiply<4, 1>(panel, K, vectors, out); break;
      case 5: multiply<5, 1>(panel, K, vectors, out); break;
      case 6: multiply<6, 1>(panel, K, vectors, out); break;
    }
  }
}

template <int kRows>
void fold_rows(float* rows, float scale, const float* weights, const float* updates, int64_t ldu) {
  F32 sums[kRows];
  for (int r = 0; r < kRows; r++) sums[r] = mul(set1(scale), load(rows + r * kLanes));
  for (int j = 0; j < 16; j++) {
    const F32 update = load(updates + j * ldu);
    for (int r = 0; r < kRows; r++) sums[r] = fma(set1(weights[r * kLanes + j]), update, sums[r]);
  }
  for (int r = 0; r < kRows; r++) store(rows + r * kLanes, sums[r]);
}

}  // namespace

void multiply_panels(const float* panels, int num_panels, int64_t K, const float* x, int64_t num_vectors, float* y) {
  if (num_panels == 2 && num_vectors == 2) return multiply<2, 2>(panels, K, x, y);  // a decode row, which has too few sums otherwise
  for (int p = 0; p < num_panels; p++) multiply_panel(panels + p * K * kLanes, K, x, num_vectors, y + p * kLanes);
}

void fold_panels(float* panels, int num_panels, int64_t K, float scale, const float* weights, const float* updates, int64_t ldu) {
  for (int p = 0; p < num_panels; p++) {
    float* panel = panels + p * K * kLanes;
    const float* panel_updates = updates + p * kLanes;
    int64_t k = 0;
    for (; k + kRowsAtOnce <= K; k += kRowsAtOnce)
      fold_rows<kRowsAtOnce>(panel + k * kLanes, scale, weights + k * kLanes, panel_updates, ldu);
    for (; k < K; k++) fold_rows<1>(panel + k * kLanes, scale, weights + k * kLanes, panel_updates, ldu);
  }
}

}  // namespace OCTAVO_NS
