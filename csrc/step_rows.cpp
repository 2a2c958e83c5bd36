#include "step_rows.h"

#include <algorithm>

#include "checks.h"

namespace OCTAVO_NS {

// Tokens and positions, request by request.
void StepRows::lay_out_requests(const SeatTable& token_ids, const StepPlan& plan, const BatchLimits& limits) {
  token_ids_.clear();
  positions_.clear();
  seq_lens_.clear();
  query_start_loc_.assign(1, 0);
  for (int64_t r = 0; r < plan.num_requests; r++) {
    const int64_t begin = plan.num_computed_tokens[r], count = plan.num_scheduled_tokens[r];
    check_range("a seat", plan.seats[r], 0, token_ids.num_seats - 1);
    check_range("a number of computed tokens", begin, 0, limits.max_model_len - 1);
    check_range("a number of scheduled tokens", count, 1, std::min(limits.max_model_len, token_ids.columns) - begin);
    check_range("the number of tokens", (int64_t)token_ids_.size() + count, 1, limits.max_num_tokens);
    const int32_t* tokens = token_ids.data + plan.seats[r] * token_ids.columns;
    token_ids_.insert(token_ids_.end(), tokens + begin, tokens + begin + count);
    for (int64_t position = begin; position < begin + count; position++) positions_.push_back((int32_t)position);
    seq_lens_.push_back((int32_t)(begin + count));
    query_start_loc_.push_back((int32_t)token_ids_.size());
  }
}

// Tables as long as the longest request needs, and of attention where the keys and values of each row go.
GroupTables StepRows::lay_out_group(const SeatTable& table, const StepPlan& plan, const GroupLimits& limits, GroupRows& rows) const {
  const int64_t longest = *std::max_element(seq_lens_.begin(), seq_lens_.end()), block_size = limits.block_size;
  const int64_t stride = limits.is_state ? 1 : (longest + block_size - 1) / block_size;
  check_range("blocks of a request", stride, 1, table.columns);
  rows.block_tables.clear();
  rows.slot_mapping.clear();
  for (int64_t r = 0; r < plan.num_requests; r++) {
    check_range("a seat", plan.seats[r], 0, table.num_seats - 1);
    const int32_t* blocks = table.data + plan.seats[r] * table.columns;
    rows.block_tables.insert(rows.block_tables.end(), blocks, blocks + stride);
    for (int32_t row = query_start_loc_[(size_t)r]; !limits.is_state && row < query_start_loc_[(size_t)r + 1]; row++) {
      const int64_t position = positions_[(size_t)row];
      rows.slot_mapping.push_back(blocks[position / block_size] * block_size + position % block_size);
    }
  }
  return {rows.block_tables.data(), stride, limits.is_state ? nullptr : rows.slot_mapping.data()};
}

Batch StepRows::lay_out(const SeatTables& tables, const StepPlan& plan, const BatchLimits& limits) {
  check_range("the number of requests", plan.num_requests, 1, limits.max_num_seqs);
  check_equal("the number of block tables", (int64_t)tables.blocks.size(), (int64_t)limits.groups.size());
  lay_out_requests(tables.token_ids, plan, limits);
  Batch batch;
  batch.num_tokens = (int32_t)token_ids_.size();
  batch.num_requests = (int32_t)plan.num_requests;
  batch.token_ids = token_ids_.data();
  batch.positions = positions_.data();
  batch.query_start_loc = query_start_loc_.data();
  batch.seq_lens = seq_lens_.data();
  batch.saves = plan.saves;
  batch.num_saves = plan.num_saves;
  groups_.resize(tables.blocks.size());
  for (size_t g = 0; g < groups_.size(); g++)
    batch.groups.push_back(lay_out_group(tables.blocks[g], plan, limits.groups[g], groups_[g]));
  check_batch(batch, limits);
  return batch;
}

}  // namespace OCTAVO_NS
