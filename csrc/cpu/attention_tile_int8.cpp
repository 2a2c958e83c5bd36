// The inner kernel of attention for int8 caches: products of int16 pairs, summed as integers within a tile.
//
// Queries, and a row's weights of one tile times the scales of their values, are rounded to 16 bits. So the sums are exact, a key of weight
// 0 adds nothing whatever its bits are, and the order of keys does not matter. 32767 * 127 * 512 < 2^31: no sum overflows.
#include <cfloat>
#include <cmath>
#include <utility>

#include "attention_softmax.h"
#include "attention_tile.h"
#include "hadamard.h"
#include "simd.h"
#include "smallest_scale.h"

namespace OCTAVO_NS {

namespace {

constexpr float kLargest = 32767.0f;

// Key pieces, and chunks of value columns, per pass.
#if defined(OCTAVO_ISA_AVX512)
constexpr int vectors_per_row(int rows) { return rows <= 6 ? 4 : 2; }
#elif defined(OCTAVO_ISA_AVX2)
constexpr int vectors_per_row(int rows) { return rows <= 1 ? 2 : 1; }
#else
constexpr int vectors_per_row(int) { return 1; }
#endif

OCTAVO_INLINE const int8_t* keys_of(const uint8_t* piece) { return (const int8_t*)piece + kScaleBytes; }
OCTAVO_INLINE const float* key_scales(const uint8_t* piece) { return (const float*)piece; }
OCTAVO_INLINE const float* value_scales(const uint8_t* piece) { return (const float*)piece + kPieceTokens; }

// sums[r][i] += the pairs of vector(i) . pair r of `pairs`, which are 2 * kStride elements apart.
template <int kStride, int R, int W, class Vector>
OCTAVO_INLINE void add_products(I32 (&sums)[R][W], Vector vector, const int16_t* pairs) {
#pragma GCC unroll 4
  for (int i = 0; i < W; i++) {
    const I16 v = vector(i);
    __asm__("" : "+r"(pairs));  // read them again rather than keep them: no register is left
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) sums[r][i] = dot_pair(sums[r][i], v, pairs + 2 * r * kStride);
  }
}

template <int R, int W>
OCTAVO_INLINE void clear(I32 (&sums)[R][W]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int i = 0; i < W; i++) sums[r][i] = zero_i32();
}

// scores[r][16 * b + i] = q_r . k of key i of piece b, for the B pieces from first_piece on, which are `piece`.
template <int R, int B>
OCTAVO_INLINE void score_pieces(const int16_t* q, const float* q_scale, const uint8_t* const* piece, const uint8_t* const* next,
                                int64_t head_dim, float (*scores)[kTileKeys], int first_piece) {
  const int64_t key_bytes = kPieceTokens * padded_head_dim(head_dim);
  I32 sums[R][B];
  clear(sums);
#pragma GCC unroll 4
  for (int b = 0; b < B; b++)
    for (int64_t line = 0; line < kScaleBytes; line += 64) prefetch(next[b] + line);
  for (int64_t line = 0; line < key_bytes; line += 64, q += 4 * R) {  // two pairs of each key
#pragma GCC unroll 4
    for (int b = 0; b < B; b++) prefetch(keys_of(next[b]) + line);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++)
      add_products<1>(sums, [&](int b) { return load_i8_as_i16(keys_of(piece[b]) + line + 32 * half); }, q + 2 * half * R);
  }
#pragma GCC unroll 4
  for (int b = 0; b < B; b++) {
    const F32 scale = load(key_scales(piece[b]));
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
      store(scores[r] + (first_piece + b) * kPieceTokens, mul(to_f32(sums[r][b]), mul(scale, set1(q_scale[r]))));
  }
}

// Round weights times the scales of their values; the result is `out` times the scale returned, NaN if any is.
OCTAVO_INLINE float quantize_weights(const float* weights, const KeyTile& tile, int16_t* out) {
  F32 scaled[kPieces], most = zero();
#pragma GCC unroll 4
  for (int b = 0; b < kPieces; b++) {  // the scale of a key that the row does not see may be anything
    const F32 weight = load(weights + b * kPieceTokens);
    scaled[b] = tile.piece[b] ? select(cmp_gt(weight, zero()), mul(weight, load(value_scales(tile.piece[b]))), zero()) : zero();
    most = max_magnitude(most, scaled[b]);
  }
  const float largest = reduce_magnitude(most), scale = largest / kLargest;
  if (!(scale >= kSmallestScale)) {
    memset(out, 0, kTileKeys * sizeof(int16_t));
    return scale != scale ? scale : 0.0f;
  }
  const F32 factor = set1(kLargest / largest);
#pragma GCC unroll 4
  for (int b = 0; b < kPieces; b++) store_i16(out + b * kPieceTokens, mul(scaled[b], factor));
  return scale;
}

// acc[r][c] += weights of row r . values, for the C chunks from first_chunk on.
template <int R, int C>
OCTAVO_INLINE void add_values(const int16_t (*weights)[kTileKeys], const float* scales, const KeyRange& range, const KeyTile& tile,
                              float* acc, int64_t first_chunk, int64_t num_chunks) {
  constexpr int kPrefetchBytes = C * kPieceTokens * kPieceTokens;  // of a piece, in the course of these chunks
  const int64_t pair_bytes = 2 * padded_head_dim(tile.head_dim), values_offset = kPieceTokens * padded_head_dim(tile.head_dim);
  int64_t column[C];
  I32 sums[R][C];
  clear(sums);
#pragma GCC unroll 4
  for (int c = 0; c < C; c++) column[c] = 2 * value_column(first_chunk + c, tile.head_dim);
  for (int b = range.any_begin / kPieceTokens; b * kPieceTokens < range.any_end; b++) {
    const int8_t *values = keys_of(tile.piece[b]) + values_offset, *next = keys_of(tile.next[b]) + values_offset;
    next += first_chunk * kPieceTokens * kPieceTokens;
    for (int t = 0; t < kPieceTokens; t += 4, values += 2 * pair_bytes, next += kPrefetchBytes / 4) {  // keys without weight add nothing
#pragma GCC unroll 4
      for (int line = 0; line < kPrefetchBytes / 4; line += 64) prefetch(next + line);
#pragma GCC unroll 2
      for (int half = 0; half < 2; half++)
        add_products<kTileKeys / 2>(
            sums, [&](int c) { return load_i8_as_i16(values + half * pair_bytes + column[c]); },
            weights[0] + b * kPieceTokens + t + 2 * half);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    if (range.begin[r] >= range.end[r]) continue;
#pragma GCC unroll 4
    for (int c = 0; c < C; c++) {
      float* target = acc + (r * num_chunks + first_chunk + c) * 16;
      store(target, fma(to_f32(sums[r][c]), set1(scales[r]), load(target)));
    }
  }
}

template <int R>
void attend_tile(const TileRows& rows, const KeyTile& tile) {
  constexpr int kWidth = vectors_per_row(R);
  const KeyRange range = visible_keys<R>(rows, tile.position);
  if (range.any_begin >= range.any_end) return;

  alignas(64) float scores[R][kTileKeys];
  for_visible_pieces<kWidth>(range, tile, [&](const uint8_t* const* piece, const uint8_t* const* next, int b) {
    score_pieces<R, kWidth>((const int16_t*)rows.q, rows.q_scale, piece, next, tile.head_dim, scores, b);
  });

  const int64_t num_chunks = num_value_chunks(tile.head_dim);
  alignas(64) int16_t quantized[R][kTileKeys];
  float scales[R];
  softmax_rows<R>(scores, range, tile.softcap, num_chunks, rows.state);
  for (int r = 0; r < R; r++) scales[r] = quantize_weights(scores[r], tile, quantized[r]);
  int64_t c = 0;
  for (; c + kWidth <= num_chunks; c += kWidth) add_values<R, kWidth>(quantized, scales, range, tile, rows.state.acc, c, num_chunks);
  for (; c < num_chunks; c++) add_values<R, 1>(quantized, scales, range, tile, rows.state.acc, c, num_chunks);
}

template <int... R>
TileKernel kernel_of_rows(int rows, std::integer_sequence<int, R...>) {
  static constexpr TileKernel small[] = {attend_tile<R + 1>...};
  return rows == kMaxTileRows ? attend_tile<kMaxTileRows> : small[rows - 1];
}

}  // namespace

TileKernel int8_tile_kernel(int rows) { return kernel_of_rows(rows, std::make_integer_sequence<int, kMaxSmallTileRows>()); }

void quantize_query(const float* q, float factor, int32_t head_dim, int32_t rows, int16_t* out, float* scale) {
  alignas(64) float rotated[kMaxHeadDim];
  alignas(64) int16_t rounded[kMaxHeadDim] = {};
  const auto count = [&](int64_t i) { return head_dim - i >= kLanes ? kLanes : (int)(head_dim - i); };
  for (int64_t i = 0; i < head_dim; i += kLanes) store(rotated + i, load_first(q + i, count(i)));
  hadamard(rotated, head_dim);
  F32 most = zero();
  for (int64_t i = 0; i < head_dim; i += kLanes) most = max_magnitude(most, load_first(rotated + i, count(i)));
  const float largest = reduce_magnitude(most);
  *scale = largest * (factor / (float)hadamard_block(head_dim)) / kLargest;
  if (fabsf(*scale) < kSmallestScale) *scale = 0.0f;
  if (fabsf(*scale) <= FLT_MAX && *scale != 0.0f) {  // otherwise zeros, which times a NaN or infinity are NaN
    const F32 steps = set1(kLargest / largest);
    for (int64_t i = 0; i < head_dim; i += kLanes) store_i16(rounded + i, mul(load_first(rotated + i, count(i)), steps));
  }
  for (int64_t i = 0; i < padded_head_dim(head_dim); i += 2) memcpy(out + i * rows, rounded + i, 2 * sizeof(int16_t));
}

}  // namespace OCTAVO_NS
