#include "batch_checks.h"

#include <algorithm>

#include "checks.h"

namespace OCTAVO_NS {

namespace {

void check_all(const char* what, const int32_t* values, int64_t count, int64_t low, int64_t high) {
  for (int64_t i = 0; i < count; i++) check_range(what, values[i], low, high);
}

void check_group(const GroupTables& tables, const Batch& batch, const GroupLimits& limits) {
  for (int32_t r = 0; r < batch.num_requests; r++) {
    const int64_t seq_len = batch.seq_lens[r], first_query = seq_len - (batch.query_start_loc[r + 1] - batch.query_start_loc[r]);
    const int64_t first_visible = limits.window > 0 ? std::max(first_query - limits.window + 1, (int64_t)0) : 0;
    const int64_t end_block = (seq_len + limits.block_size - 1) / limits.block_size;
    check_range("blocks of a request", end_block, 1, tables.block_table_stride);
    const int32_t* table = tables.block_tables + r * tables.block_table_stride;
    const int64_t first_block = first_visible / limits.block_size;
    check_all("a block id", table + first_block, end_block - first_block, 0, limits.num_blocks - 1);
  }
  const int64_t num_slots = limits.num_blocks * limits.block_size;
  for (int64_t t = 0; t < batch.num_tokens; t++) check_range("a slot", tables.slot_mapping[t], -1, num_slots - 1);
}

}  // namespace

void check_batch(const Batch& batch, const BatchLimits& limits) {
  check_range("the number of tokens", batch.num_tokens, 1, limits.max_num_tokens);
  check_range("the number of requests", batch.num_requests, 1, limits.max_num_seqs);
  check_all("a token id", batch.token_ids, batch.num_tokens, 0, limits.num_token_ids - 1);
  check_all("a position", batch.positions, batch.num_tokens, 0, limits.max_model_len - 1);
  check_equal("query_start_loc[0]", batch.query_start_loc[0], 0);
  check_equal("the last of query_start_loc", batch.query_start_loc[batch.num_requests], batch.num_tokens);
  for (int32_t r = 0; r < batch.num_requests; r++) {
    const int64_t begin = batch.query_start_loc[r], end = batch.query_start_loc[r + 1];
    check_range("query_start_loc", end, begin + 1, batch.num_tokens);
    check_range("a sequence length", batch.seq_lens[r], end - begin, limits.max_model_len);
  }
  for (size_t g = 0; g < limits.groups.size(); g++) check_group(batch.groups[g], batch, limits.groups[g]);
}

void check_logit_rows(const int32_t* rows, int64_t num_rows, int64_t num_tokens) {
  check_all("a logit row", rows, num_rows, 0, num_tokens - 1);
}

void check_samples(const SampleArrays& samples, int64_t num_rows, const SampleLimits& limits) {
  check_all("num_logprobs", samples.num_logprobs, num_rows, -1, samples.top_stride);
  check_all("a forced token", samples.forced_token, num_rows, -1, limits.vocab_size - 1);
  check_all("allowed_rows", samples.allowed_rows, num_rows, -1, limits.num_masks - 1);
  check_equal("edit_offsets[0]", samples.edit_offsets[0], 0);
  for (int64_t n = 0; n < num_rows; n++)
    check_range("edit_offsets", samples.edit_offsets[n + 1], samples.edit_offsets[n], limits.num_edits);
  for (int64_t e = 0; e < samples.edit_offsets[num_rows]; e++)
    check_range("an edit's token id", samples.edits[e].token_id, 0, limits.vocab_size - 1);
}

}  // namespace OCTAVO_NS
