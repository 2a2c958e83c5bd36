#include "moe.h"

#include <algorithm>
#include <cmath>

#include "simd.h"

namespace OCTAVO_NS {

namespace {

constexpr float kSmallestSum = 1e-20f;  // added to a sum of sigmoids before dividing by it: all of them may be zero

// e^(x - largest) of each, and their sum: sixteen lanes that take turns, so the order depends on the count alone.
float exponentials(const float* x, int64_t count, float* out) {
  float largest = x[0];
  for (int64_t i = 1; i < count; i++) largest = x[i] > largest ? x[i] : largest;
  F32 sum = zero();
  for (int64_t i = 0; i < count; i += kLanes) {
    const int lanes = (int)std::min(count - i, (int64_t)kLanes);
    store_first(out + i, exp(sub(load_first(x + i, lanes), set1(largest))), lanes);
    sum = add(sum, load_first(out + i, lanes));
  }
  return reduce_add(sum);
}

void softmax(const float* x, int64_t count, float* out) {
  const float sum = exponentials(x, count, out);
  for (int64_t i = 0; i < count; i++) out[i] = out[i] / sum;
}

void sigmoids(const float* x, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int lanes = (int)std::min(count - i, (int64_t)kLanes);
    store_first(out + i, sigmoid(load_first(x + i, lanes)), lanes);
  }
}

// The index of the largest value, the lowest among equals, of those whose `is_out` is 0.
int64_t best_of(const float* values, const float* is_out, int64_t count) {
  int64_t best = -1;
  for (int64_t i = 0; i < count; i++) {
    if (is_out[i] == 0.0f && (best < 0 || values[i] > values[best])) best = i;
  }
  return best;
}

float group_score(GroupScore kind, const float* keys, int64_t count) {
  float first = keys[0], second = -INFINITY;
  for (int64_t i = 1; i < count; i++) {
    second = std::max(second, std::min(first, keys[i]));
    first = std::max(first, keys[i]);
  }
  return kind == GroupScore::kMax ? first : first + second;
}

// Leave in `is_out` [num_experts] only the experts of the best groups. `scratch`: 2 * num_groups.
void keep_best_groups(const Routing& r, const float* keys, float* is_out, float* scratch) {
  const int64_t size = r.num_experts / r.num_groups;
  float *scores = scratch, *is_group_out = scratch + r.num_groups;
  for (int64_t g = 0; g < r.num_groups; g++) scores[g] = group_score(r.group_score, keys + g * size, size);
  std::fill_n(is_group_out, r.num_groups, 0.0f);
  std::fill_n(is_out, r.num_experts, 1.0f);
  for (int32_t i = 0; i < r.top_groups; i++) {
    const int64_t g = best_of(scores, is_group_out, r.num_groups);
    is_group_out[g] = 1.0f;
    std::fill_n(is_out + g * size, size, 0.0f);
  }
}

}  // namespace

void route_row(const Routing& r, const float* logits, const float* choice_bias, float* experts, float* weights, float* scratch) {
  const int64_t E = r.num_experts;
  float *scores = scratch, *keys = scratch + E, *is_out = scratch + 2 * E;
  switch (r.scoring) {
    case Scoring::kSoftmax: softmax(logits, E, scores); break;
    case Scoring::kSigmoid: sigmoids(logits, E, scores); break;
    case Scoring::kTopkSoftmax: std::copy_n(logits, E, scores); break;
  }
  for (int64_t e = 0; e < E; e++) keys[e] = choice_bias ? scores[e] + choice_bias[e] : scores[e];
  if (r.num_groups > 1) keep_best_groups(r, keys, is_out, scratch + 3 * E);
  else std::fill_n(is_out, E, 0.0f);
  for (int32_t rank = 0; rank < r.top_k; rank++) {
    const int64_t e = best_of(keys, is_out, E);
    is_out[e] = 1.0f;
    experts[rank] = (float)e;
    weights[rank] = scores[e];
  }
  if (r.scoring == Scoring::kTopkSoftmax) softmax(weights, r.top_k, weights);
  if (r.renormalize) {
    float sum = 0.0f;
    for (int32_t rank = 0; rank < r.top_k; rank++) sum += weights[rank];
    if (r.scoring == Scoring::kSigmoid) sum += kSmallestSum;
    for (int32_t rank = 0; rank < r.top_k; rank++) weights[rank] = weights[rank] / sum;
  }
  const bool has_nan = std::any_of(logits, logits + E, [](float logit) { return logit != logit; });
  for (int32_t rank = 0; rank < r.top_k; rank++) weights[rank] = has_nan ? NAN : weights[rank] * r.scale;
}

void MoePlan::reserve(int64_t num_rows, int64_t top_k, int64_t num_experts) {
  offsets.reserve((size_t)num_experts + 1);
  rows.reserve((size_t)(num_rows * top_k));
  places.reserve((size_t)(num_rows * top_k));
  active.reserve((size_t)num_experts);
  costs.reserve((size_t)num_experts + 1);
}

void sort_by_expert(const float* experts, int64_t num_rows, int64_t top_k, int64_t num_experts, int64_t ldx, MoePlan& plan) {
  plan.offsets.assign((size_t)num_experts + 1, 0);
  plan.rows.resize((size_t)(num_rows * top_k));
  plan.places.resize((size_t)(num_rows * top_k));
  plan.active.clear();
  const auto expert_of = [&](int64_t row, int64_t rank) {
    const float id = experts[row * ldx + rank];
    return id >= 0 && id < (float)num_experts ? (size_t)id : 0;  // a router's ids are in range; others must not harm
  };
  for (int64_t row = 0; row < num_rows; row++) {
    for (int64_t rank = 0; rank < top_k; rank++) plan.offsets[expert_of(row, rank) + 1]++;
  }
  for (size_t e = 0; e < (size_t)num_experts; e++) {
    if (plan.offsets[e + 1] > 0) plan.active.push_back((int32_t)e);
    plan.offsets[e + 1] += plan.offsets[e];
  }
  // offsets[e] is where the next row of e goes, and at the end where those of e + 1 begin.
  for (int64_t row = 0; row < num_rows; row++) {
    for (int64_t rank = 0; rank < top_k; rank++) {
      const int32_t place = plan.offsets[expert_of(row, rank)]++;
      plan.rows[(size_t)place] = (int32_t)row;
      plan.places[(size_t)(row * top_k + rank)] = place;
    }
  }
  for (size_t e = (size_t)num_experts; e > 0; e--) plan.offsets[e] = plan.offsets[e - 1];
  plan.offsets[0] = 0;
}

void moe_combine(const float* x, const float* weights, const float* add_to, float* y, const MoePlan& plan, int64_t top_k, int64_t E,
                 int64_t ldx, int64_t ldw, int64_t lda, int64_t ldy, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; row++) {
    const int32_t* places = plan.places.data() + row * top_k;
    const float* factors = weights + row * ldw;
    for (int64_t i = 0; i < E; i += kLanes) {
      const int lanes = (int)std::min(E - i, (int64_t)kLanes);
      const auto read = [&](const float* p) { return lanes == kLanes ? load(p) : load_first(p, lanes); };
      F32 sum = mul(set1(factors[0]), read(x + places[0] * ldx + i));
      for (int64_t rank = 1; rank < top_k; rank++) sum = fma(set1(factors[rank]), read(x + places[rank] * ldx + i), sum);
      if (add_to) sum = add(sum, read(add_to + row * lda + i));
      store_first(y + row * ldy + i, sum, lanes);
    }
  }
}

}  // namespace OCTAVO_NS
