#include "batch_checks.h"

#include <algorithm>
#include <cfloat>

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
    const int32_t* table = tables.block_tables + r * tables.block_table_stride;
    const int64_t first_block = first_visible / limits.block_size;
    check_all("a block id", table + first_block, end_block - first_block, 0, limits.num_blocks - 1);
  }
}

void check_slots(const GroupTables& tables, const Batch& batch, const GroupLimits& limits) {
  for (int32_t r = 0; r < batch.num_requests; r++)
    check_range("a state slot", tables.block_tables[r * tables.block_table_stride], 0, limits.num_blocks - 1);
}

void check_save(const StateSave& save, const Batch& batch, const BatchLimits& limits) {
  check_range("the request of a state save", save.request, 0, batch.num_requests - 1);
  check_range("the group of a state save", save.group, 0, (int64_t)limits.groups.size() - 1);
  const GroupLimits& group = limits.groups[(size_t)save.group];
  if (!group.is_state) fail("group %d holds no states that could be saved", save.group);
  check_range("the slot of a state save", save.slot, 0, group.num_blocks - 1);
  const int64_t seq_len = batch.seq_lens[save.request];
  const int64_t num_rows = batch.query_start_loc[save.request + 1] - batch.query_start_loc[save.request];
  check_range("the position of a state save", save.position, seq_len - num_rows + 1, seq_len);
  if (save.position % kOpenChunk) fail("the position of a state save must be a multiple of %d, got %d", kOpenChunk, save.position);
}

}  // namespace

void check_batch(const Batch& batch, const BatchLimits& limits) {
  check_all("a token id", batch.token_ids, batch.num_tokens, 0, limits.num_token_ids - 1);
  for (size_t g = 0; g < limits.groups.size(); g++) {
    const auto check = limits.groups[g].is_state ? check_slots : check_group;
    check(batch.groups[g], batch, limits.groups[g]);
  }
  for (int64_t i = 0; i < batch.num_saves; i++) check_save(batch.saves[i], batch, limits);
}

void check_logit_rows(const int32_t* rows, int64_t num_rows, int64_t num_tokens) {
  check_all("a logit row", rows, num_rows, 0, num_tokens - 1);
}

void check_targets(const int32_t* targets, int64_t num_rows, int64_t num_sums) {
  check_all("the sum of a row", targets, num_rows, 0, num_sums - 1);
}

void check_choice(float temperature, int64_t top_k, float top_p, float min_p) {
  if (!(temperature == 0.0f || (temperature >= kLeastTemperature && temperature <= FLT_MAX)))
    fail("temperature must be finite, and 0 or at least %g, got %g", (double)kLeastTemperature, (double)temperature);
  check_range("top_k", top_k, 0, INT32_MAX);
  if (!(top_p >= 0.0f && top_p <= 1.0f)) fail("top_p must be in [0, 1], got %g", (double)top_p);
  if (!(min_p >= 0.0f && min_p <= 1.0f)) fail("min_p must be in [0, 1], got %g", (double)min_p);
}

void check_samples(const SampleArrays& samples, int64_t num_rows, const SampleLimits& limits) {
  for (int64_t n = 0; n < num_rows; n++) {
    const SampleChoice& choice = samples.choices[n];
    check_choice(choice.temperature, choice.top_k, choice.top_p, choice.min_p);
    check_range("num_logprobs", choice.num_logprobs, -1, std::min(samples.top_stride, limits.vocab_size));
    check_range("a forced token", choice.forced_token, -1, limits.vocab_size - 1);
    check_range("an allowed row", choice.allowed_row, -1, limits.num_masks - 1);
    check_range("a first edit", choice.first_edit, 0, limits.num_edits);
    check_range("a number of edits", choice.num_edits, 0, limits.num_edits - choice.first_edit);
    check_range("a first score", choice.first_score, 0, limits.num_scores);
    check_range("a number of scores", choice.num_scores, 0, limits.num_scores - choice.first_score);
  }
  for (int64_t e = 0; e < limits.num_edits; e++)
    check_range("an edit's token id", samples.edits[e].token_id, 0, limits.vocab_size - 1);
  check_all("a token id to score", samples.score_ids, limits.num_scores, -1, limits.vocab_size - 1);
}

}  // namespace OCTAVO_NS
