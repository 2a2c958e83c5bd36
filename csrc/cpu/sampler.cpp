// One row of logits to a token, in the order: raw scores, allowed tokens, edits, greedy; or temperature, min-p, top-k, top-p, draw.
#include "sampler.h"

#include <algorithm>

#include "sampler_row.h"

namespace OCTAVO_NS {

namespace {

// What a request reports of a row: logits or logprobs, of the raw row or of what was sampled from.
struct Report {
  const float* x;
  int64_t V;
  float inverse_temperature;
  bool as_logprobs;
};

void report(const Report& row, const SampleParams& params, const RowScratch& scratch, SampleResult* result, int32_t* top_ids,
            float* top_logprobs, float* scores) {
  double base = 0.0;
  if (row.as_logprobs) {
    const RowMax max = row_max(row.x, row.V, scratch);
    base = log_sum_exp(row.x, row.V, max.value, row.inverse_temperature, scratch);
  }
  const auto value = [&](float logit) { return (float)((double)logit * (double)row.inverse_temperature - base); };
  result->logprob = value(row.x[result->token_id]);
  result->rank = (int32_t)(1 + count_greater(row.x, row.V, row.x[result->token_id]));
  for (int64_t i = 0; i < params.num_scores; i++) {
    const int32_t id = params.score_ids[i];
    scores[i] = id < 0 ? -__builtin_inff() : value(row.x[id]);
  }
  if (params.num_logprobs <= 0) return;
  select_top(row.x, row.V, params.num_logprobs, scratch);
  for (int32_t i = 0; i < params.num_logprobs; i++) {
    top_ids[i] = scratch.candidates[i].id;
    top_logprobs[i] = value(scratch.candidates[i].logit);
  }
}

// The smallest logit that min-p keeps.
float min_p_floor(const SampleParams& params, float max) {
  if (params.min_p <= 0.0f) return -__builtin_inff();
  return (float)((double)max + (double)params.temperature * log_of(params.min_p));
}

// Sample from the `top_k` best tokens. `last` becomes the last token in order that could have been drawn.
int32_t sample_few(const float* x, int64_t V, const SampleParams& params, float max, const RowScratch& scratch, Candidate* last) {
  Candidate* kept = scratch.candidates;
  const float inverse_temperature = 1.0f / params.temperature, floor = min_p_floor(params, max);
  int64_t count = params.top_k;
  select_top(x, V, count, scratch);
  while (count > 1 && kept[count - 1].logit < floor) count--;
  if (params.top_p < 1.0f) {
    weigh_candidates(count, max, inverse_temperature, scratch);
    double total = 0.0, sum = 0.0;
    for (int64_t i = 0; i < count; i++) total += (double)scratch.weights[i];
    int64_t fewest = 0;
    do sum += (double)scratch.weights[fewest++];
    while (fewest < count && sum < (double)params.top_p * total);
    count = fewest;
  }
  *last = kept[count - 1];
  std::sort(kept, kept + count, [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  weigh_candidates(count, max, inverse_temperature, scratch);
  return kept[draw_candidate(count, philox_uniform(params.seed, params.position, 0), scratch)].id;
}

// Sample from all tokens, or those that min-p and top-p keep.
int32_t sample_all(const float* x, int64_t V, const SampleParams& params, float max, const RowScratch& scratch, Candidate* last) {
  const float inverse_temperature = 1.0f / params.temperature;
  *last = {min_p_floor(params, max), INT32_MAX};
  weigh(x, V, max, inverse_temperature, last->logit, scratch);
  if (params.top_p < 1.0f) {
    const Candidate cut = top_p_cut(x, V, max, inverse_temperature, (double)params.top_p, scratch);
    if (precedes(cut, *last)) *last = cut;  // rounding may put the cut at the end of a bucket that min-p has halved
    drop_after(x, V, *last, scratch);
  }
  return (int32_t)draw(V, philox_uniform(params.seed, params.position, 0), scratch);
}

}  // namespace

int64_t sampler_scratch_bytes(int64_t V) {
  RowScratch scratch;
  return lay_out_row_scratch(&scratch, V, nullptr);
}

void sample_row(float* logits, int64_t V, const SampleParams& params, LogprobsMode mode, uint8_t* scratch_bytes, SampleResult* result,
                int32_t* top_ids, float* top_logprobs, float* scores) {
  RowScratch scratch;
  lay_out_row_scratch(&scratch, V, scratch_bytes);
  *result = {-1, 1, 0, 0.0f};
  const bool wanted = params.num_logprobs >= 0, forced = params.forced_token >= 0;
  const bool raw = forced || mode == LogprobsMode::kRawLogprobs || mode == LogprobsMode::kRawLogits;
  const bool as_logprobs = mode == LogprobsMode::kRawLogprobs || mode == LogprobsMode::kProcessedLogprobs;
  RowMax max = row_max(logits, V, scratch);
  if (!max.ok) return;

  float* x = logits;
  if (forced) {
    result->token_id = params.forced_token;
  } else {
    if (params.allowed || params.num_edits > 0) {
      result->status = 2;
      if (wanted && raw) x = std::copy(logits, logits + V, scratch.row) - V;
      if (params.allowed) ban_others(x, V, params.allowed);
      if (!apply_edits(x, params.edits, params.num_edits)) return;
      max = row_max(x, V, scratch);
      if (!max.ok) return;
    }
    Candidate last = {-__builtin_inff(), INT32_MAX};
    if (params.temperature == 0.0f)
      result->token_id = argmax(x, V, max.value, scratch);
    else if (params.top_k > 0 && params.top_k < V)
      result->token_id = sample_few(x, V, params, max.value, scratch, &last);
    else
      result->token_id = sample_all(x, V, params, max.value, scratch, &last);
    if (wanted && !raw) ban_after(x, V, last);
  }
  result->status = 0;
  if (!wanted) return;
  const float temperature = raw || params.temperature == 0.0f ? 1.0f : params.temperature;
  report({raw ? logits : x, V, 1.0f / temperature, as_logprobs}, params, scratch, result, top_ids, top_logprobs, scores);
}

}  // namespace OCTAVO_NS
