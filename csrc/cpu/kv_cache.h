// Where a layer's keys and values live in the paged cache, and how they are written.
#pragma once

#include <cstdint>

#include "isa.h"

namespace OCTAVO_NS {

enum class CacheDtype : int32_t { kF32 = 0, kF16 = 1, kBF16 = 2, kI8 = 3 };

constexpr int kPieceTokens = 16;
constexpr int kMinHeadDim = 16, kMaxHeadDim = 512;  // any head_dim in between

// One layer of one cache group. Block b starts at pool + b * block_bytes; in it this layer starts at layer_offset; then per
// 16 tokens, per kv head, a piece: K as [head_dim][16], then V as [16][head_dim].
//
// An int8 piece holds integers times the scale of their token, for kernels that multiply pairs of integers: the scales of its keys
// [16] and of its values [16] in float32, then, with D = head_dim rounded up to a multiple of 4, K as [D / 2][16][2] (two neighbouring
// elements of each token) and V as [8][D][2] (each element of two neighbouring tokens). What rounding adds is never written.
// Keys and values are rotated first (hadamard.h), so that a few large elements do not coarsen the steps of all others.
struct CacheLayer {
  uint8_t* pool;
  int64_t block_bytes;
  int64_t layer_offset;
  int32_t block_size;  // tokens, a multiple of 16
  int32_t num_kv_heads;
  int32_t head_dim;
  CacheDtype dtype;
};

constexpr int64_t kScaleBytes = 2 * kPieceTokens * 4;  // of an int8 piece
constexpr int64_t padded_head_dim(int64_t head_dim) { return (head_dim + 3) / 4 * 4; }
constexpr int64_t piece_bytes(CacheDtype dtype, int64_t head_dim) {
  if (dtype == CacheDtype::kI8) return kScaleBytes + 2 * kPieceTokens * padded_head_dim(head_dim);
  return 2 * kPieceTokens * head_dim * (dtype == CacheDtype::kF32 ? 4 : 2);
}
constexpr int64_t layer_bytes(CacheDtype dtype, int64_t block_size, int64_t num_kv_heads, int64_t head_dim) {  // in one block
  return block_size / kPieceTokens * num_kv_heads * piece_bytes(dtype, head_dim);
}

// Write the keys and values of rows [row_begin, row_end). slot = block * block_size + offset.
// Stores round to nearest even. float16 and int8 saturate at +-65504; the scale of int8 is the vector's largest magnitude / 127, NaN if
// any element is. Returns how many values saturated.
int64_t kv_write(const CacheLayer& cache,
                 const float* k,          // [T, KVH * D]  row stride ldk
                 const float* v,          // [T, KVH * D]  row stride ldv
                 const int64_t* slots,    // [T]
                 int64_t ldk, int64_t ldv, int64_t row_begin, int64_t row_end);

}  // namespace OCTAVO_NS
