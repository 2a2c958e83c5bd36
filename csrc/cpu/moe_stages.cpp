// The stages of a mixture of experts: the sort with its copies, and the experts' products cut in parts of equal time.
#include <algorithm>
#include <cstring>

#include "program.h"

namespace OCTAVO_NS {

namespace {

// Where in a stage's work a part begins: a unit of an expert, which is active[expert].
struct Position {
  int64_t expert, unit;
};

// A function of the plan alone, so that one part ends where the next begins.
Position position_at(const MoeGemmStage& stage, int64_t index, int64_t num_parts) {
  const std::vector<double>& costs = stage.plan->costs;
  const int64_t num_active = (int64_t)stage.plan->active.size();
  if (index == 0) return {0, 0};
  if (index == num_parts) return {num_active, 0};
  const double target = costs.back() * (double)index / (double)num_parts;
  const int64_t expert = std::upper_bound(costs.begin(), costs.end() - 1, target) - costs.begin() - 1;
  const double begin = costs[(size_t)expert], end = costs[(size_t)expert + 1];
  const int64_t units = num_units(stage.experts[(size_t)stage.plan->active[(size_t)expert]]);
  return {expert, std::min((int64_t)((target - begin) / (end - begin) * (double)units), units)};
}

}  // namespace

void sort_rows(const MoeSortStage& stage, int64_t num_rows) {
  sort_by_expert(stage.experts.data, num_rows, stage.top_k, stage.num_experts, stage.experts.stride, *stage.plan);
}

void copy_sorted_rows(const MoeSortStage& stage, int64_t sorted_begin, int64_t sorted_end) {
  for (int64_t place = sorted_begin; place < sorted_end; place++) {
    const int64_t row = stage.plan->rows[(size_t)place];
    if (stage.act.data) {
      memcpy(stage.sorted_act.data + place * stage.sorted_act.stride, stage.act.data + row * stage.act.stride, (size_t)stage.row_bytes);
    } else {
      memcpy(stage.sorted_x.data + place * stage.sorted_x.stride, stage.x.data + row * stage.x.stride, (size_t)stage.row_bytes);
    }
  }
}

double plan_products(const MoeGemmStage& stage) {
  MoePlan& plan = *stage.plan;
  double total = 0;
  plan.costs.clear();
  plan.costs.push_back(0);
  for (const int32_t e : plan.active) {
    const GemmStage& expert = stage.experts[(size_t)e];
    total += std::max(fixed_ns(expert), (double)plan.num_rows(e) * row_ns(expert));
    plan.costs.push_back(total);
  }
  return total;
}

int64_t num_units(const MoeGemmStage& stage) {
  int64_t units = 0;
  for (const int32_t e : stage.plan->active) units += num_units(stage.experts[(size_t)e]);
  return units;
}

void run_part(const MoeGemmStage& stage, int64_t index, int64_t num_parts, uint8_t* scratch) {
  const MoePlan& plan = *stage.plan;
  const Position begin = position_at(stage, index, num_parts), end = position_at(stage, index + 1, num_parts);
  for (int64_t i = begin.expert; i <= end.expert && i < (int64_t)plan.active.size(); i++) {
    const size_t e = (size_t)plan.active[(size_t)i];
    const GemmStage& expert = stage.experts[e];
    const int64_t unit_begin = i == begin.expert ? begin.unit : 0, unit_end = i == end.expert ? end.unit : num_units(expert);
    if (unit_begin < unit_end) run_units(expert, plan.offsets[e], plan.offsets[e + 1], unit_begin, unit_end, scratch);
  }
}

}  // namespace OCTAVO_NS
