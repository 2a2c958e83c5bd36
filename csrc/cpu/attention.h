// Causal attention over the paged cache; one body for prefill and decode.
//
// The key axis is always cut in segments of 512 absolute positions, each with its own (max, sum, accumulator), folded in order; tiles
// are 64 absolute positions. So a row's result depends on its position only, never on the step's shape or the threads.
// Source: Kwon et al. 2023, arXiv:2309.06180; online softmax, Milakov & Gimelshein 2018, arXiv:1805.02867.
#pragma once

#include <cstdint>

#include "isa.h"
#include "kv_cache.h"

namespace OCTAVO_NS {

constexpr int kSegmentTokens = 512;
constexpr int32_t kMaxSeqLen = 1 << 30;  // tokens: the ends of their tiles and segments are positions in an int32, too

struct AttentionArgs {
  CacheLayer cache;
  const float* q;              // [T, H * D]  row stride ldq
  float* out;                  // [T, H * D]  row stride ldo
  int64_t ldq, ldo;
  int32_t num_heads;           // H; a multiple of cache.num_kv_heads
  float scale;                 // multiplies q . k
  float softcap;               // 0: none; else softcap * tanh(score / softcap)
  int32_t window;              // 0: none; else a query sees its own and the window - 1 positions before
  const int32_t* block_tables; // [R, block_table_stride]; only entries of visible positions are read
  int64_t block_table_stride;
  const int32_t* query_start_loc;  // [R + 1]
  const int32_t* seq_lens;     // [R]  tokens including this step's
  int32_t num_requests;        // R
};

// The work of one call as units that any thread may compute in any order.
struct AttentionPlan {
  int64_t num_units;   // phase 1
  int64_t num_folds;   // phase 2, after all units of phase 1; 0 if nothing was split
};

// Bytes of shared scratch the largest call can need, and of per-thread scratch.
int64_t attention_shared_scratch_bytes(int64_t max_requests, int32_t num_heads, int32_t num_kv_heads, int32_t head_dim,
                                       int64_t max_model_len, int32_t num_threads);
int64_t attention_thread_scratch_bytes(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim);

// Lay out the units of this step (small, serial; the result lives in shared scratch). May split long decodes over threads:
// a choice of who computes, not of what.
AttentionPlan attention_plan(const AttentionArgs& args, int32_t num_threads, uint8_t* shared_scratch);
void attention_units(const AttentionArgs& args, int64_t unit_begin, int64_t unit_end, uint8_t* shared_scratch, uint8_t* thread_scratch);
void attention_fold(const AttentionArgs& args, int64_t fold, uint8_t* shared_scratch);

}  // namespace OCTAVO_NS
