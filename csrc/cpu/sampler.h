// From one row of logits to a token, its logprob and the best alternatives. Rows are independent; one thread does a row.
#pragma once

#include <cstdint>

#include "isa.h"

namespace OCTAVO_NS {

// One change of one logit, applied in this order: x += bias; x = x > 0 ? x / repetition : x * repetition; x -= penalty.
// bias -inf bans the token.
struct LogitEdit {
  int32_t token_id;
  float bias;
  float repetition;  // 1: none
  float penalty;     // frequency * count + presence
};

enum class LogprobsMode : int32_t { kRawLogprobs = 0, kRawLogits = 1, kProcessedLogprobs = 2, kProcessedLogits = 3 };

constexpr float kLeastTemperature = 1e-30f;  // that differences of logits can be divided by

struct SampleParams {
  float temperature;   // 0: greedy; else at least kLeastTemperature
  int32_t top_k;       // 0: off
  float top_p;         // 1: off; 0, what the smallest numbers are in float32: the best token alone
  float min_p;         // 0: off
  uint64_t seed;       // randomness is Philox4x32-10 keyed by (seed, position, draw): no generator state
  int64_t position;    // of the token to be sampled
  int32_t num_logprobs;  // -1: none; 0: the chosen token only; k <= V: and the top k
  int32_t forced_token;  // -1: sample; else the token is given and only scored (prompt logprobs)
  const LogitEdit* edits;
  int64_t num_edits;
  const uint32_t* allowed;  // [ceil(V / 32)] bit per token, or null: all allowed
  const int32_t* score_ids;  // tokens to score beside these; -1 is none, and scores -inf
  int64_t num_scores;
};

struct SampleResult {
  int32_t token_id;
  int32_t status;      // 0 ok; 1 non-finite logits (NaN, +inf, or all -inf); 2 mask and edits leave no token
  int32_t rank;        // 1-based rank of the token: 1 + number of tokens with a greater logprob
  float logprob;
};

// Top k ties: logit descending, id ascending; top-p cumulates in that order; inverse CDF with one draw in id order.
// `logits` [V] are changed in place. If num_logprobs >= 0, top_ids and top_logprobs [num_logprobs] and scores [num_scores] are written.
void sample_row(float* logits, int64_t V, const SampleParams& params, LogprobsMode mode, uint8_t* scratch, SampleResult* result,
                int32_t* top_ids, float* top_logprobs, float* scores);
int64_t sampler_scratch_bytes(int64_t V);

// Philox4x32-10, first word of counter (position, draw), key seed; to a uniform in [0, 1).
double philox_uniform(uint64_t seed, int64_t position, uint32_t draw);

}  // namespace OCTAVO_NS
