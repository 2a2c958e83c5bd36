// How one attention call is cut into units, kept at the start of the shared scratch.
#pragma once

#include "attention.h"

namespace OCTAVO_NS {

// Rows of a unit: all heads of a group, for neighbouring tokens. Enough to reuse a key tile, few enough to share out.
constexpr int kTargetUnitRows = 48;

// Tokens per unit, a power of two up to 64: units start at multiples of it, so no unit straddles a key tile.
inline int32_t tokens_per_unit(int32_t group_size) {
  int32_t tokens = 1;
  while (tokens < 64 && 2 * tokens * group_size <= kTargetUnitRows) tokens *= 2;
  return tokens;
}

inline int32_t first_visible(int32_t position, int32_t window) { return window > 0 && position >= window ? position - window + 1 : 0; }

struct RequestPlan {
  int64_t unit_begin;  // units of the requests before this one
  int64_t fold_begin;  // folds of the requests before this one
  float* partials;     // [segments, kv heads, partial_floats]; null if the request is not split
};

// One unit, found by its number.
struct UnitWork {
  int32_t request;
  int32_t kv_head;
  int32_t token_begin;  // rows of q and out
  int32_t num_tokens;
  int32_t position;     // of token_begin
  int32_t first_key, last_key;  // positions that some row sees; of a partial, those in its segment
  float* partial;       // where its result goes; null if to out
};

UnitWork find_unit(const AttentionArgs& args, const RequestPlan* plan, int64_t unit);

// A partial is the result of one segment for one decode row's group: maxima, sums, then at an offset the accumulators.
int64_t partial_floats(int32_t group_size, int32_t head_dim);
int64_t partial_acc_offset(int32_t group_size);

}  // namespace OCTAVO_NS
