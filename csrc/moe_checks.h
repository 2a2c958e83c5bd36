// Checks of what a mixture of experts is described by.
#pragma once

#include "checks.h"
#include "cpu/moe.h"

namespace OCTAVO_NS {

constexpr int64_t kMaxExperts = 1 << 16;

inline void check_experts(int64_t top_k, int64_t num_experts) {
  check_range("num_experts", num_experts, 1, kMaxExperts);
  check_range("top_k", top_k, 1, num_experts);
}

inline void check_routing(const Routing& r) {
  check_experts(r.top_k, r.num_experts);
  check_range("num_groups", r.num_groups, 1, r.num_experts);
  check_range("top_groups", r.top_groups, 1, r.num_groups);
  if (r.num_experts % r.num_groups) fail("num_experts must be a multiple of num_groups");
  check_range("top_k", r.top_k, 1, (int64_t)r.top_groups * (r.num_experts / r.num_groups));
}

}  // namespace OCTAVO_NS
