// The part of a native program that loads mixtures of experts: checks, then stages.
#include <algorithm>

#include "bind_names.h"
#include "moe_checks.h"
#include "native_program.h"

namespace OCTAVO_NS {

void NativeProgram::route(Place logits, std::optional<Vector> choice_bias, const Routing& routing, Place experts, Place weights) {
  check_routing(routing);
  const float* bias = choice_bias ? keep(*choice_bias, routing.num_experts) : nullptr;
  add_row_op(RouteOp{floats(logits, routing.num_experts), routing, bias, floats(experts, routing.top_k), floats(weights, routing.top_k)},
             router_scratch_floats(routing.num_experts, routing.num_groups));
}

void NativeProgram::moe_sort(Place experts, int64_t top_k, int64_t num_experts, std::optional<Place> x, std::optional<Place> act,
                             int64_t width, Place sorted_rows) {
  check_open();
  check_experts(top_k, num_experts);
  check_range("width", width, 1, kMaxWidth);
  if (x.has_value() == act.has_value()) fail("moe_sort reads either floats or activation blocks");
  const int64_t rows = max_rows();
  check_range("the sorted rows", rows * top_k, 1, INT32_MAX);
  moe_plan_->reserve(rows, top_k, num_experts);
  sorted_experts_ = num_experts;
  sorted_per_row_ = top_k;
  MoeSortStage stage = {};
  stage.experts = floats(experts, top_k);
  stage.top_k = top_k;
  stage.num_experts = num_experts;
  stage.plan = moe_plan_.get();
  if (act) {
    stage.act = acts(act, width);
    stage.sorted_act = acts(sorted_rows, width, rows * top_k);
    stage.row_bytes = num_groups(width) * (int64_t)sizeof(ActBlock);
  } else {
    stage.x = floats(*x, width);
    stage.sorted_x = floats(sorted_rows, width, rows * top_k);
    stage.row_bytes = width * (int64_t)sizeof(float);
  }
  stages().emplace_back(std::move(stage));
}

int64_t NativeProgram::num_sorted_rows() const {
  if (sorted_per_row_ == 0) fail("experts run on sorted rows: moe_sort comes first");
  return max_rows() * sorted_per_row_;
}

void NativeProgram::moe_gemm(std::optional<Place> x, std::optional<Place> act, Place y,
                             const std::vector<std::vector<SegmentArgs>>& experts) {
  check_open();
  const int64_t rows = num_sorted_rows();
  check_equal("the number of experts", (int64_t)experts.size(), sorted_experts_);
  MoeGemmStage stage;
  stage.plan = moe_plan_.get();
  for (const std::vector<SegmentArgs>& segments : experts) {
    stage.experts.push_back(product(x, act, y, false, segments, rows));
  }
  stages().emplace_back(std::move(stage));
}

void NativeProgram::moe_gate(Place x, const char* gate, int64_t width, std::optional<Place> y, std::optional<Place> act) {
  check_open();
  if (!y && !act) fail("moe_gate has no result");
  check_range("width", width, 1, kMaxWidth);
  const int64_t rows = num_sorted_rows();
  RowStage stage;
  stage.rows_per_row = sorted_per_row_;
  stage.scratch_floats = y ? 0 : width;
  const Floats floats_out = y ? floats(*y, width, rows) : Floats();
  stage.ops.push_back(GatedMulOp{floats(x, 2 * width, rows), gate_of(gate), width, floats_out, acts(act, width, rows)});
  stages().emplace_back(std::move(stage));
}

void NativeProgram::moe_combine(Place x, Place weights, int64_t width, std::optional<Place> add, Place y) {
  check_range("width", width, 1, kMaxWidth);
  const Floats sorted = floats(x, width, num_sorted_rows());
  add_row_op(MoeCombineOp{sorted, floats(weights, sorted_per_row_), floats(add, width), sorted_per_row_, width, floats(y, width),
                          moe_plan_.get()});
}

}  // namespace OCTAVO_NS
