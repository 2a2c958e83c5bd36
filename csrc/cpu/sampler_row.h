// Passes over one row of logits, from which the sampler is made. Sums are of chunks of 64 in float, of chunks in double, in order.
#pragma once

#include <cstdint>

#include "isa.h"
#include "sampler.h"

namespace OCTAVO_NS {

constexpr int64_t kSliceTokens = 4096;  // slices have their own maximum and sum, merged in order
constexpr int64_t kChunkTokens = 64;
constexpr int kNumBuckets = 1024;       // of 1/32 nat below the maximum; the last holds the rest

struct Candidate {
  float logit;
  int32_t id;
};

// The order of tokens everywhere: logit descending, id ascending.
inline constexpr auto precedes = [](const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
};

struct RowScratch {
  float* row;             // [V]  a copy, where the raw logits are needed later
  float* weights;         // [V + 64]
  Candidate* candidates;  // [V]
  float* chunk_maxima;    // [2, chunks]  and a copy to select in
  double* chunk_sums;     // [chunks]
  float* slice_maxima;    // [slices]
  double* buckets;        // [2, kNumBuckets]
};
int64_t lay_out_row_scratch(RowScratch* scratch, int64_t V, uint8_t* base);  // returns its bytes; base may be null to measure

struct RowMax {
  float value;
  bool ok;  // no NaN, no +inf, and not all -inf
};
RowMax row_max(const float* x, int64_t V, const RowScratch& scratch);          // fills slice_maxima
int32_t argmax(const float* x, int64_t V, float max, const RowScratch& scratch);  // reads slice_maxima
int64_t count_greater(const float* x, int64_t V, float limit);

// log(sum exp(x * inverse_temperature)); reads slice_maxima.
double log_sum_exp(const float* x, int64_t V, float max, float inverse_temperature, const RowScratch& scratch);
double log_of(double x);

void ban_others(float* x, int64_t V, const uint32_t* allowed);
bool apply_edits(float* x, const LogitEdit* edits, int64_t num_edits);  // false if a logit became NaN or +inf

// The first `count` tokens in order, sorted, to scratch.candidates.
void select_top(const float* x, int64_t V, int64_t count, const RowScratch& scratch);

// weights[i] = exp((x[i] - max) * inverse_temperature), 0 below `floor`. Fills chunk_sums.
void weigh(const float* x, int64_t V, float max, float inverse_temperature, float floor, const RowScratch& scratch);
void weigh_candidates(int64_t count, float max, float inverse_temperature, const RowScratch& scratch);  // weights[i] of candidate i

// The last token of the fewest that together have `top_p` of all weight.
Candidate top_p_cut(const float* x, int64_t V, float max, float inverse_temperature, double top_p, const RowScratch& scratch);
void drop_after(const float* x, int64_t V, Candidate last, const RowScratch& scratch);  // weights become 0; fills chunk_sums
void ban_after(float* x, int64_t V, Candidate last);                                    // logits become -inf

// The token, or candidate, at which the running sum of weights passes `uniform` times all.
int64_t draw(int64_t V, double uniform, const RowScratch& scratch);
int64_t draw_candidate(int64_t count, double uniform, const RowScratch& scratch);

}  // namespace OCTAVO_NS
