// Bounds of what a step's arrays hold, checked once per call: nothing that comes from Python can reach foreign memory.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/executor.h"
#include "cpu/isa.h"

namespace OCTAVO_NS {

struct GroupLimits {
  int64_t num_blocks;
  int32_t block_size;
  int32_t window;  // the longest view of a layer of the group; 0: all positions
  bool is_state = false;  // blocks are slots of recurrent states, one for each request
};

struct BatchLimits {
  int64_t max_num_tokens, max_num_seqs, max_model_len;
  int64_t num_token_ids;  // rows of the smallest embedding table
  std::vector<GroupLimits> groups;
};

void check_batch(const Batch& batch, const BatchLimits& limits);  // ids of tokens, blocks and slots, of rows that were laid out
void check_logit_rows(const int32_t* rows, int64_t num_rows, int64_t num_tokens);
void check_targets(const int32_t* targets, int64_t num_rows, int64_t num_sums);

// How a token is drawn: numbers of which every quotient and power in the sampler is finite.
void check_choice(float temperature, int64_t top_k, float top_p, float min_p);

struct SampleLimits {
  int64_t vocab_size, num_edits, num_masks, num_scores;
};
void check_samples(const SampleArrays& samples, int64_t num_rows, const SampleLimits& limits);

}  // namespace OCTAVO_NS
