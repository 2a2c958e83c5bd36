// Passes over one row of logits. Every one goes through chunks of 64 in order, the last one padded with -inf.
#include "sampler_row.h"

#include <algorithm>

#include "cache_line.h"
#include "simd.h"

namespace OCTAVO_NS {

namespace {

constexpr float kInfinity = __builtin_inff();
constexpr int kVectors = kChunkTokens / kLanes;

struct Chunk {
  F32 v[kVectors];
};

OCTAVO_INLINE Chunk load_chunk(const float* x, int64_t left) {
  Chunk chunk;
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; i++) {
    const int64_t n = left - i * kLanes;
    if (n >= kLanes) chunk.v[i] = load(x + i * kLanes);
    else if (n <= 0) chunk.v[i] = set1(-kInfinity);
    else chunk.v[i] = select(mask_first((int)n), load_first(x + i * kLanes, (int)n), set1(-kInfinity));
  }
  return chunk;
}

OCTAVO_INLINE F32 sum_of(const Chunk& c) { return add(add(c.v[0], c.v[1]), add(c.v[2], c.v[3])); }
OCTAVO_INLINE F32 max_of(const Chunk& c) { return max(max(c.v[0], c.v[1]), max(c.v[2], c.v[3])); }

OCTAVO_INLINE uint64_t bits_where(const Chunk& c, F32 limit, Mask (*compare)(F32, F32)) {
  uint64_t bits = 0;
  for (int i = 0; i < kVectors; i++) bits |= (uint64_t)to_bits(compare(c.v[i], limit)) << (i * kLanes);
  return bits;
}

// The bucket of each of sixteen logits, as float.
OCTAVO_INLINE F32 bucket_of(F32 x, F32 top, F32 per_logit) {
  return round_nearest(min(mul(sub(top, x), per_logit), set1((float)(kNumBuckets - 1))));
}

// Fewest of `count` candidates, first in order, whose weights bring `sum` to `target`; sorts or partitions them. Weights of one
// bucket are within 3 % of each other, so their sums in double are exact in any order.
Candidate cut_bucket(Candidate* c, int64_t count, double sum, double target, const float* weights) {
  while (count > 64) {
    const int64_t half = count / 2;
    std::nth_element(c, c + half, c + count, precedes);
    double left = 0.0;
    for (int64_t i = 0; i < half; i++) left += (double)weights[c[i].id];
    if (sum + left >= target) {
      count = half;
    } else {
      sum += left;
      c += half;
      count -= half;
    }
  }
  std::sort(c, c + count, precedes);
  for (int64_t i = 0; i < count; i++) {
    sum += (double)weights[c[i].id];
    if (sum >= target) return c[i];
  }
  return c[count - 1];
}

// The lanes, whose first token is `id`, that do not come after `last` in order.
OCTAVO_INLINE Mask up_to(F32 x, int64_t id, Candidate last) {
  const F32 lowest = set1(last.logit);
  const Mask at_least = cmp_ge(x, lowest), equal = mask_and_not(at_least, cmp_gt(x, lowest));
  const int64_t ties = std::clamp<int64_t>(last.id + (int64_t)1 - id, 0, kLanes);
  return mask_and_not(at_least, mask_and_not(equal, mask_first((int)ties)));
}

// Logits become -inf where `keep(sixteen logits, id of the first)` is not set.
template <class Keep>
OCTAVO_INLINE void keep_where(float* x, int64_t V, Keep keep) {
  int64_t i = 0;
  for (; i + kLanes <= V; i += kLanes) {
    const F32 logits = load(x + i);
    store(x + i, select(keep(logits, i), logits, set1(-kInfinity)));
  }
  if (i == V) return;
  const F32 logits = load_first(x + i, (int)(V - i));
  store_first(x + i, select(keep(logits, i), logits, set1(-kInfinity)), (int)(V - i));
}

// The first weight at which the running sum passes `target`; the last positive one if rounding kept it from that.
int64_t draw_weight(const float* weights, int64_t count, double target) {
  double sum = 0.0;
  int64_t drawn = 0;
  for (int64_t i = 0; i < count; i++) {
    if (weights[i] <= 0.0f) continue;
    drawn = i;
    sum += (double)weights[i];
    if (sum > target) break;
  }
  return drawn;
}

}  // namespace

int64_t lay_out_row_scratch(RowScratch* scratch, int64_t V, uint8_t* base) {
  const int64_t chunks = (V + kChunkTokens - 1) / kChunkTokens, slices = (V + kSliceTokens - 1) / kSliceTokens;
  uintptr_t next = (uintptr_t)base;
  const auto take = [&](int64_t bytes) {
    void* p = (void*)next;
    next += (uintptr_t)whole_lines(bytes);
    return p;
  };
  scratch->row = (float*)take(V * 4);
  scratch->weights = (float*)take((V + kChunkTokens) * 4);
  scratch->candidates = (Candidate*)take(V * (int64_t)sizeof(Candidate));
  scratch->chunk_maxima = (float*)take(2 * chunks * 4);
  scratch->chunk_sums = (double*)take(chunks * 8);
  scratch->slice_maxima = (float*)take(slices * 4);
  scratch->buckets = (double*)take(2 * kNumBuckets * 8);
  return (int64_t)(next - (uintptr_t)base);
}

RowMax row_max(const float* x, int64_t V, const RowScratch& scratch) {
  float row = -kInfinity;
  Chunk bad = {{zero(), zero(), zero(), zero()}};  // 1 once a lane was NaN or +inf
  for (int64_t begin = 0; begin < V; begin += kSliceTokens) {
    const int64_t end = std::min(begin + kSliceTokens, V);
    Chunk best = {{set1(-kInfinity), set1(-kInfinity), set1(-kInfinity), set1(-kInfinity)}};
    for (int64_t i = begin; i < end; i += kChunkTokens) {
      const Chunk chunk = load_chunk(x + i, end - i);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; j++) {
        best.v[j] = max(chunk.v[j], best.v[j]);
        bad.v[j] = select(cmp_gt(set1(kInfinity), chunk.v[j]), bad.v[j], set1(1.0f));
      }
    }
    const float slice = reduce_max(max_of(best));
    scratch.slice_maxima[begin / kSliceTokens] = slice;
    row = std::max(row, slice);
  }
  return {row, row > -kInfinity && reduce_max(max_of(bad)) == 0.0f};
}

int32_t argmax(const float* x, int64_t V, float max, const RowScratch& scratch) {
  int64_t slice = 0;
  while (scratch.slice_maxima[slice] != max) slice++;
  for (int64_t i = slice * kSliceTokens;; i += kChunkTokens) {
    const uint64_t bits = bits_where(load_chunk(x + i, V - i), set1(max), cmp_ge);
    if (bits) return (int32_t)(i + __builtin_ctzll(bits));
  }
}

int64_t count_greater(const float* x, int64_t V, float limit) {
  int64_t count = 0;
  for (int64_t i = 0; i < V; i += kChunkTokens)
    count += __builtin_popcountll(bits_where(load_chunk(x + i, V - i), set1(limit), cmp_gt));
  return count;
}

double log_sum_exp(const float* x, int64_t V, float max, float inverse_temperature, const RowScratch& scratch) {
  const F32 scale = set1(inverse_temperature * kLog2E);
  double total = 0.0;
  for (int64_t begin = 0; begin < V; begin += kSliceTokens) {
    const float slice_max = scratch.slice_maxima[begin / kSliceTokens];
    if (slice_max == -kInfinity) continue;
    const int64_t end = std::min(begin + kSliceTokens, V);
    const F32 top = set1(slice_max);
    double sum = 0.0;
    for (int64_t i = begin; i < end; i += kChunkTokens) {
      Chunk chunk = load_chunk(x + i, end - i);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; j++) chunk.v[j] = exp2(mul(sub(chunk.v[j], top), scale));
      sum += (double)reduce_add(sum_of(chunk));
    }
    total += sum * (double)first_lane(exp2(mul(sub(top, set1(max)), scale)));
  }
  return (double)max * (double)inverse_temperature + log_of(total);
}

double log_of(double x) {
  uint64_t bits;
  memcpy(&bits, &x, 8);
  int64_t exponent = (int64_t)(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffull) | 0x3ff0000000000000ull;
  double m;  // x = m * 2^exponent
  memcpy(&m, &bits, 8);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    exponent++;
  }
  const double s = (m - 1.0) / (m + 1.0), square = s * s;  // log(m) = 2 (s + s^3 / 3 + s^5 / 5 + ...)
  double series = 0.0;
  for (int k = 21; k >= 1; k -= 2) series = series * square + 1.0 / k;
  return (double)exponent * 0.6931471805599453 + 2.0 * s * series;
}

void ban_others(float* x, int64_t V, const uint32_t* allowed) {
  keep_where(x, V, [=](F32, int64_t i) { return from_bits(allowed[i / 32] >> (i % 32) & 0xffffu); });
}

bool apply_edits(float* x, const LogitEdit* edits, int64_t num_edits) {
  bool ok = true;
  for (int64_t i = 0; i < num_edits; i++) {
    float& logit = x[edits[i].token_id];
    logit += edits[i].bias;
    logit = logit > 0.0f ? logit / edits[i].repetition : logit * edits[i].repetition;
    logit -= edits[i].penalty;
    ok = ok && logit < kInfinity;
  }
  return ok;
}

void select_top(const float* x, int64_t V, int64_t count, const RowScratch& scratch) {
  const int64_t chunks = (V + kChunkTokens - 1) / kChunkTokens;
  float *maxima = scratch.chunk_maxima, *copy = maxima + chunks;
  for (int64_t c = 0; c < chunks; c++) maxima[c] = reduce_max(max_of(load_chunk(x + c * kChunkTokens, V - c * kChunkTokens)));
  float threshold = -kInfinity;  // at least `count` logits reach it: the largest of `count` chunks
  if (count < chunks) {
    std::copy(maxima, maxima + chunks, copy);
    std::nth_element(copy, copy + count - 1, copy + chunks, [](float a, float b) { return a > b; });
    threshold = copy[count - 1];
  }
  int64_t found = 0;
  for (int64_t c = 0; c < chunks; c++) {
    if (maxima[c] < threshold) continue;
    const int64_t begin = c * kChunkTokens, left = V - begin;
    uint64_t bits = bits_where(load_chunk(x + begin, left), set1(threshold), cmp_ge);
    if (left < kChunkTokens) bits &= ((uint64_t)1 << left) - 1;
    for (; bits; bits &= bits - 1) {
      const int64_t i = begin + __builtin_ctzll(bits);
      scratch.candidates[found++] = {x[i], (int32_t)i};
    }
  }
  Candidate* c = scratch.candidates;
  if (found > count) std::nth_element(c, c + count - 1, c + found, precedes);
  std::sort(c, c + count, precedes);
}

void weigh(const float* x, int64_t V, float max, float inverse_temperature, float floor, const RowScratch& scratch) {
  const F32 top = set1(max), scale = set1(inverse_temperature * kLog2E), lowest = set1(floor);
  for (int64_t i = 0; i < V; i += kChunkTokens) {
    Chunk chunk = load_chunk(x + i, V - i);
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; j++) {
      const F32 weight = exp2(mul(sub(chunk.v[j], top), scale));
      chunk.v[j] = select(cmp_ge(chunk.v[j], lowest), weight, zero());
      store(scratch.weights + i + j * kLanes, chunk.v[j]);
    }
    scratch.chunk_sums[i / kChunkTokens] = (double)reduce_add(sum_of(chunk));
  }
}

void weigh_candidates(int64_t count, float max, float inverse_temperature, const RowScratch& scratch) {
  const F32 top = set1(max), scale = set1(inverse_temperature * kLog2E);
  for (int64_t i = 0; i < count; i += kLanes) {
    float logits[kLanes] = {};
    for (int64_t j = 0; j < kLanes && i + j < count; j++) logits[j] = scratch.candidates[i + j].logit;
    store(scratch.weights + i, exp2(mul(sub(load(logits), top), scale)));
  }
}

Candidate top_p_cut(const float* x, int64_t V, float max, float inverse_temperature, double top_p, const RowScratch& scratch) {
  double *even = scratch.buckets, *odd = even + kNumBuckets;  // two, so that a run of one bucket waits less on itself
  std::fill(even, odd + kNumBuckets, 0.0);
  const F32 top = set1(max), per_logit = set1(32.0f * inverse_temperature);
  int32_t bucket[kChunkTokens];
  for (int64_t i = 0; i < V; i += kChunkTokens) {
    const Chunk chunk = load_chunk(x + i, V - i);
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; j++) store_i32(bucket + j * kLanes, to_i32(bucket_of(chunk.v[j], top, per_logit)));
    const float* weights = scratch.weights + i;
    for (int j = 0; j < kChunkTokens; j += 2) {
      even[bucket[j]] += (double)weights[j];
      odd[bucket[j + 1]] += (double)weights[j + 1];
    }
  }
  double total = 0.0, sum = 0.0;
  for (int b = 0; b < kNumBuckets; b++) total += even[b] + odd[b];
  const double target = top_p * total;
  int last = 0;
  while (last < kNumBuckets - 1 && sum + (even[last] + odd[last]) < target) {
    sum += even[last] + odd[last];
    last++;
  }
  int64_t found = 0;
  for (int64_t i = 0; i < V; i += kChunkTokens) {
    Chunk chunk = load_chunk(x + i, V - i);
    for (F32& v : chunk.v) v = bucket_of(v, top, per_logit);
    uint64_t bits = bits_where(chunk, set1((float)last), cmp_ge) & ~bits_where(chunk, set1((float)last), cmp_gt);
    if (V - i < kChunkTokens) bits &= ((uint64_t)1 << (V - i)) - 1;
    for (; bits; bits &= bits - 1) {
      const int64_t id = i + __builtin_ctzll(bits);
      scratch.candidates[found++] = {x[id], (int32_t)id};
    }
  }
  return cut_bucket(scratch.candidates, found, sum, target, scratch.weights);
}

void drop_after(const float* x, int64_t V, Candidate last, const RowScratch& scratch) {
  for (int64_t i = 0; i < V; i += kChunkTokens) {
    Chunk chunk = load_chunk(x + i, V - i);
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; j++) {
      float* weights = scratch.weights + i + j * kLanes;
      chunk.v[j] = select(up_to(chunk.v[j], i + j * kLanes, last), load(weights), zero());
      store(weights, chunk.v[j]);
    }
    scratch.chunk_sums[i / kChunkTokens] = (double)reduce_add(sum_of(chunk));
  }
}

void ban_after(float* x, int64_t V, Candidate last) {
  keep_where(x, V, [=](F32 logits, int64_t i) { return up_to(logits, i, last); });
}

int64_t draw(int64_t V, double uniform, const RowScratch& scratch) {
  const int64_t chunks = (V + kChunkTokens - 1) / kChunkTokens;
  double total = 0.0, sum = 0.0;
  for (int64_t c = 0; c < chunks; c++) total += scratch.chunk_sums[c];
  const double target = uniform * total;
  int64_t chunk = 0;
  while (chunk < chunks - 1 && sum + scratch.chunk_sums[chunk] <= target) sum += scratch.chunk_sums[chunk++];
  const int64_t begin = chunk * kChunkTokens;
  return begin + draw_weight(scratch.weights + begin, std::min(kChunkTokens, V - begin), target - sum);
}

int64_t draw_candidate(int64_t count, double uniform, const RowScratch& scratch) {
  double total = 0.0;
  for (int64_t i = 0; i < count; i++) total += (double)scratch.weights[i];
  return draw_weight(scratch.weights, count, uniform * total);
}

}  // namespace OCTAVO_NS
