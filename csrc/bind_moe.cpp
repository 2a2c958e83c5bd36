// The router as Python sees it: for tests and benchmarks; a program calls the kernel itself.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <optional>
#include <vector>

#include "bind_arrays.h"
#include "bind_names.h"
#include "bindings.h"
#include "moe_checks.h"

namespace nb = nanobind;

namespace OCTAVO_NS {

namespace {

using namespace nb::literals;

void route(const Matrix<const float>& logits, const std::optional<Array<const float, 1>>& choice_bias, const Matrix<float>& experts,
           const Matrix<float>& weights, int32_t top_k, const char* scoring, bool renormalize, float scale, int32_t num_groups,
           int32_t top_groups, const char* group_score) {
  const auto in = rows_of("logits", logits);
  check_range("num_experts", in.columns, 1, kMaxExperts);
  const Routing routing = {(int32_t)in.columns, top_k, scoring_of(scoring), renormalize, scale, num_groups, top_groups,
                           group_score_of(group_score)};
  check_routing(routing);
  if (choice_bias) check_length("choice_bias", *choice_bias, in.columns);
  const auto ids = rows_of("experts", experts, in.rows, top_k), factors = rows_of("weights", weights, in.rows, top_k);
  std::vector<float> scratch((size_t)router_scratch_floats(in.columns, num_groups));
  for (int64_t row = 0; row < in.rows; row++) {
    route_row(routing, in.data + row * in.stride, choice_bias ? choice_bias->data() : nullptr, ids.data + row * ids.stride,
              factors.data + row * factors.stride, scratch.data());
  }
}

}  // namespace

void bind_moe(nb::module_& m) {
  m.def("route", &route, "logits"_a.noconvert(), "choice_bias"_a.noconvert().none(), "experts"_a.noconvert(), "weights"_a.noconvert(),
        "top_k"_a, "scoring"_a, "renormalize"_a, "scale"_a, "num_groups"_a, "top_groups"_a, "group_score"_a,
        "Choose top_k of the experts of each row, and weigh them.");
}

}  // namespace OCTAVO_NS
