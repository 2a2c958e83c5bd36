// Cutting an attention call into units: who computes what. The bits do not depend on any choice made here.
#include "attention_plan.h"

#include <algorithm>

#include "attention_tile.h"
#include "cache_line.h"

namespace OCTAVO_NS {

namespace {

constexpr int kUnitsPerThread = 4;                    // a decode unit larger than this share of a thread's work is split
constexpr int64_t kMaxPartialBytes = (int64_t)64 << 20;  // a split that needs more is not made

int32_t num_tokens(const AttentionArgs& args, int32_t request) {
  return args.query_start_loc[request + 1] - args.query_start_loc[request];
}

// Segments that the last row of a request sees.
int32_t first_segment(const AttentionArgs& args, int32_t request) {
  return first_visible(args.seq_lens[request] - 1, args.window) / kSegmentTokens;
}
int32_t num_segments(const AttentionArgs& args, int32_t request) {
  return (args.seq_lens[request] - 1) / kSegmentTokens - first_segment(args, request) + 1;
}

int64_t num_row_tiles(const AttentionArgs& args, int32_t request) {
  const int32_t count = num_tokens(args, request), step = tokens_per_unit(args.num_heads / args.cache.num_kv_heads);
  if (count == 0) return 0;
  return (args.seq_lens[request] - 1) / step - (args.seq_lens[request] - count) / step + 1;
}

}  // namespace

int64_t partial_acc_offset(int32_t group_size) { return whole_lines(2 * group_size * 4) / 4; }

int64_t partial_floats(int32_t group_size, int32_t head_dim) {
  return partial_acc_offset(group_size) + group_size * num_value_chunks(head_dim) * 16;
}

int64_t attention_shared_scratch_bytes(int64_t max_requests, int32_t num_heads, int32_t num_kv_heads, int32_t head_dim,
                                       int64_t max_model_len, int32_t num_threads) {
  const int64_t segments = (max_model_len + kSegmentTokens - 1) / kSegmentTokens;
  const int64_t heads = max_requests * num_kv_heads, split = num_threads > 1 ? (int64_t)kUnitsPerThread * num_threads : 0;
  const int64_t partials = (heads < split ? heads : split) * segments * partial_floats(num_heads / num_kv_heads, head_dim) * 4;
  return whole_lines((max_requests + 1) * (int64_t)sizeof(RequestPlan)) + (partials < kMaxPartialBytes ? partials : kMaxPartialBytes);
}

AttentionPlan attention_plan(const AttentionArgs& args, int32_t num_threads, uint8_t* shared_scratch) {
  const int32_t R = args.num_requests, KVH = args.cache.num_kv_heads;
  const int64_t floats = partial_floats(args.num_heads / KVH, args.cache.head_dim);
  RequestPlan* plan = (RequestPlan*)shared_scratch;
  float* partials = (float*)(shared_scratch + whole_lines((R + 1) * (int64_t)sizeof(RequestPlan)));
  int64_t bytes_left = kMaxPartialBytes;

  int64_t work = 0;  // in rows x segments of one kv head
  for (int32_t r = 0; r < R; r++) work += (int64_t)num_tokens(args, r) * num_segments(args, r) * KVH;

  AttentionPlan totals = {0, 0};
  for (int32_t r = 0; r < R; r++) {
    plan[r] = {totals.num_units, totals.num_folds, nullptr};
    const int64_t segments = num_segments(args, r), bytes = segments * KVH * floats * 4;
    const bool large = segments * kUnitsPerThread * num_threads > work;
    if (num_threads > 1 && num_tokens(args, r) == 1 && segments > 1 && large && bytes <= bytes_left) {
      plan[r].partials = partials;
      partials += bytes / 4;
      bytes_left -= bytes;
      totals.num_units += segments * KVH;
      totals.num_folds += KVH;
    } else {
      totals.num_units += num_row_tiles(args, r) * KVH;
    }
  }
  plan[R] = {totals.num_units, totals.num_folds, nullptr};
  return totals;
}

UnitWork find_unit(const AttentionArgs& args, const RequestPlan* plan, int64_t unit) {
  int32_t low = 0, high = args.num_requests;  // the last request whose units begin at or before `unit`
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    (plan[middle].unit_begin <= unit ? low : high) = middle;
  }
  const int64_t local = unit - plan[low].unit_begin, KVH = args.cache.num_kv_heads;
  const int64_t index = local / KVH;  // of the row tile or segment; heads vary fastest
  UnitWork work = {low, (int32_t)(local % KVH), args.query_start_loc[low], num_tokens(args, low), 0, 0, 0, nullptr};
  work.position = args.seq_lens[low] - work.num_tokens;
  if (plan[low].partials) {
    const int32_t begin = (first_segment(args, low) + (int32_t)index) * kSegmentTokens, end = begin + kSegmentTokens;
    work.first_key = std::max(first_visible(work.position, args.window), begin);
    work.last_key = std::min(work.position, end - 1);
    work.partial = plan[low].partials + local * partial_floats(args.num_heads / (int32_t)KVH, args.cache.head_dim);
    return work;
  }
  const int32_t step = tokens_per_unit(args.num_heads / (int32_t)KVH), tile = (work.position / step + (int32_t)index) * step;
  const int32_t begin = tile > work.position ? tile : work.position;
  const int32_t end = tile + step < args.seq_lens[low] ? tile + step : args.seq_lens[low];
  work.token_begin += begin - work.position;
  work.num_tokens = end - begin;
  work.position = begin;
  work.first_key = first_visible(begin, args.window);
  work.last_key = end - 1;
  return work;
}

}  // namespace OCTAVO_NS
