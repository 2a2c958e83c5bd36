// Mixture of experts: a row's choice, the sort of rows by expert, and the sum of what a row's experts made.
//
// Each expert runs on its own rows, as one product. A row takes exactly `top_k` experts whatever the others take, and its results are
// added in the order of its own ranks: no bit of it depends on its company.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "isa.h"

namespace OCTAVO_NS {

enum class Scoring : int32_t { kSoftmax = 0, kSigmoid = 1, kTopkSoftmax = 2 };
enum class GroupScore : int32_t { kMax = 0, kTop2 = 1 };

// As Python's `Routing`.
struct Routing {
  int32_t num_experts, top_k;
  Scoring scoring;
  bool renormalize;
  float scale;
  int32_t num_groups, top_groups;
  GroupScore group_score;
};

constexpr int64_t router_scratch_floats(int64_t num_experts, int64_t num_groups) { return 3 * num_experts + 2 * num_groups; }

// Choose experts by (score + choice_bias descending, id ascending); weigh them by the score. The ids are always in range: a row with a
// NaN among its logits gets some experts, and weights that are NaN.
void route_row(const Routing& routing,
               const float* logits,       // [num_experts]
               const float* choice_bias,  // [num_experts] or null
               float* experts,            // [top_k] ids
               float* weights,            // [top_k]
               float* scratch);

// The rows of one step, sorted by expert: one entry for each row and rank.
struct MoePlan {
  std::vector<int32_t> offsets;  // [num_experts + 1] sorted rows [offsets[e], offsets[e + 1]) are expert e's, in order of their rows
  std::vector<int32_t> rows;     // [sorted row] the row it comes from
  std::vector<int32_t> places;   // [row * top_k + rank] the sorted row
  std::vector<int32_t> active;   // experts that have rows
  std::vector<double> costs;     // [active + 1] nanoseconds of the products with the active experts before

  int64_t num_rows(int64_t expert) const { return offsets[(size_t)expert + 1] - offsets[(size_t)expert]; }
  // Room for steps of so many rows. Throws std::bad_alloc; the functions below then allocate nothing.
  void reserve(int64_t num_rows, int64_t top_k, int64_t num_experts);
};

void sort_by_expert(const float* experts,  // [rows, top_k] ids  row stride ldx
                    int64_t num_rows, int64_t top_k, int64_t num_experts, int64_t ldx, MoePlan& plan);

// y[row] = sum over ranks of weights[row, rank] * x[place of (row, rank)], the best first (+ add[row]).
void moe_combine(const float* x,        // [rows * top_k, E]  row stride ldx
                 const float* weights,  // [rows, top_k]  row stride ldw
                 const float* add,      // [rows, E] or null  row stride lda; may be y
                 float* y,              // [rows, E]  row stride ldy
                 const MoePlan& plan, int64_t top_k, int64_t E, int64_t ldx, int64_t ldw, int64_t lda, int64_t ldy, int64_t row_begin,
                 int64_t row_end);

}  // namespace OCTAVO_NS
