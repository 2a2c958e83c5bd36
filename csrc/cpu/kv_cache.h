// Where a layer's keys and values live in the paged cache, and how they are written.
#pragma once

#include <cstdint>

#include "isa.h"

namespace OCTAVO_NS {

enum class CacheDtype : int32_t { kF32 = 0, kF16 = 1, kBF16 = 2 };

constexpr int kTileTokens = 16;
constexpr int kMinHeadDim = 16, kMaxHeadDim = 512;  // any head_dim in between

// One layer of one cache group. Block b starts at pool + b * block_bytes; in it this layer starts at layer_offset; then per
// 16-token tile, per kv head: K as [head_dim][16], then V as [16][head_dim].
struct CacheLayer {
  uint8_t* pool;
  int64_t block_bytes;
  int64_t layer_offset;
  int32_t block_size;  // tokens, a multiple of 16
  int32_t num_kv_heads;
  int32_t head_dim;
  CacheDtype dtype;
};

// Write the keys and values of rows [row_begin, row_end). slot = block * block_size + offset; slot -1: not written.
// float16 stores saturate at +-65504, others round to nearest even. Returns how many values saturated.
int64_t kv_write(const CacheLayer& cache,
                 const float* k,          // [T, KVH * D]  row stride ldk
                 const float* v,          // [T, KVH * D]  row stride ldv
                 const int64_t* slots,    // [T]
                 int64_t ldk, int64_t ldv, int64_t row_begin, int64_t row_end);

}  // namespace OCTAVO_NS
