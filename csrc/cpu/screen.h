// Finds the largest logits without reading all of an 8-bit head: first every logit from the upper six bits of its weights, then
// exactly those that may be among the largest.
//
// With w = 4 * top + low and low - 1.5 = r, a logit differs from its estimate by |sum d * r * x| <= |d * r| |x| (Cauchy-Schwarz over
// all of a row), and the rounding of both sums. The left factor is known per row of the matrix, so each estimate has two bounds; a
// logit whose upper bound is below the k-th largest lower bound is not among the k largest. What is left is computed by the product
// itself, to its bits.
#pragma once

#include <atomic>
#include <cstdint>

#include "act_block.h"
#include "arena.h"
#include "gemm.h"
#include "isa.h"

namespace OCTAVO_NS {

// Rows of a step up to which estimates are faster than the logits: those of one slice where 8 bits cost more than 6, and where they do
// not as long as the weights come from memory.
#if defined(OCTAVO_ISA_AVX512)
constexpr int64_t kMostScreenedRows = 4;
#else
constexpr int64_t kMostScreenedRows = 64;
#endif
constexpr int32_t kMostScreened = 64;  // largest logits that it is worth for

class Screen {
 public:
  // Of a matrix in the format Q8_0, which outlives it. Throws std::bad_alloc. To be filled by make().
  explicit Screen(const PackedMatrix& exact);
  static int64_t num_bytes(const PackedMatrix& exact);

  // The upper bits of these panels of the matrix, and what their estimates can be wrong by.
  void make(int64_t panel_begin, int64_t panel_end);

  int64_t num_panels() const { return OCTAVO_NS::num_panels(exact_.N); }
  // Gives the estimates of all logits.
  const PackedMatrix& top() const { return top_; }

  // Panels that are worth computing for one row; with many more, all logits of a step are computed faster together.
  int64_t worthwhile_panels() const { return 64 + num_panels() / 8; }

  // Replace the estimates of one row by the logits where those may be among the `count` largest, and by -inf elsewhere. Each panel that is
  // computed is taken from `budget`, which several rows may share; returns false, with work left undone, once that is used up, and if not
  // all estimates are finite. x: the row's activation blocks. scratch: a float for each panel.
  bool refine(const ActBlock* x, float* logits, int64_t count, std::atomic<int64_t>& budget, uint8_t* scratch) const;

 private:
  // A number that `count` logits reach at least, as their estimates are wrong by at most `norm` * errors_; -inf if not all are finite.
  float threshold(const float* logits, float norm, int64_t count, float* maxima) const;

  PackedMatrix exact_, top_;
  Arena memory_;
  float* errors_;  // [num_panels * 16] per column, for |x| = 1; past the last column infinite
};

}  // namespace OCTAVO_NS
