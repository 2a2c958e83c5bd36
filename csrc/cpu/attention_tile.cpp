// The inner kernel of attention for floating-point caches, one instance per number of rows and dtype.
//
// Whatever rows share a call, each row's arithmetic is the same: scores d = 0, 1, ...; one maximum and one rescaling per tile;
// values in the order of their positions, only those that the row sees (0 * v is no no-op for -0.0, Inf or a stale NaN).
#include "attention_tile.h"

#include <utility>

#include "attention_softmax.h"
#include "kv_cache_element.h"

namespace OCTAVO_NS {

namespace {

// Key pieces, and chunks of value columns, per pass: enough independent sums to hide the latency of fma.
#if defined(OCTAVO_ISA_AVX512)
constexpr int vectors_per_row(int rows) { return rows <= 6 ? 4 : 2; }
constexpr bool kVectorsFirst = true;  // 32 registers: all vectors, then a weight at a time
#elif defined(OCTAVO_ISA_AVX2)
constexpr int vectors_per_row(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }
constexpr bool kVectorsFirst = false;  // 16 registers: a vector at a time
#else
constexpr int vectors_per_row(int) { return 1; }
constexpr bool kVectorsFirst = false;
#endif

// sums[r][i] = fma(weights[r * kStride], vector(i), sums[r][i]).
template <int kStride, int R, int W, class Vector>
OCTAVO_INLINE void add_products(F32 (&sums)[R][W], Vector vector, const float* weights) {
  if constexpr (kVectorsFirst) {
    F32 v[W];
#pragma GCC unroll 4
    for (int i = 0; i < W; i++) v[i] = vector(i);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const F32 w = set1(weights[r * kStride]);
#pragma GCC unroll 4
      for (int i = 0; i < W; i++) sums[r][i] = fma(w, v[i], sums[r][i]);
    }
  } else {
#pragma GCC unroll 4
    for (int i = 0; i < W; i++) {
      const F32 v = vector(i);
      __asm__("" : "+r"(weights));  // read them again rather than keep them: no register is left
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) sums[r][i] = fma(set1(weights[r * kStride]), v, sums[r][i]);
    }
  }
}

// scores[r][16 * b + i] = q_r . k of key i of piece b, for the B pieces from first_piece on, which are `piece`.
template <int R, int B, CacheDtype dtype>
OCTAVO_INLINE void score_pieces(const float* q, const uint8_t* const* piece, const uint8_t* const* next, int64_t head_dim,
                                float (*scores)[kTileKeys], int first_piece) {
  using Element = typename CacheElement<dtype>::Type;
  constexpr int64_t kBytesOfD = kPieceTokens * sizeof(Element);
  F32 sums[R][B];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int b = 0; b < B; b++) sums[r][b] = zero();
  for (int64_t d = 0; d < head_dim; d++) {
    if (d * kBytesOfD % 64 == 0) {
#pragma GCC unroll 4
      for (int b = 0; b < B; b++) prefetch(next[b] + d * kBytesOfD);
    }
    add_products<1>(
        sums, [&](int b) { return CacheElement<dtype>::load16((const Element*)(piece[b] + d * kBytesOfD)); }, q + d * R);
  }
#pragma GCC unroll 4
  for (int b = 0; b < B; b++)
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) store(scores[r] + (first_piece + b) * kPieceTokens, sums[r][b]);
}

template <CacheDtype dtype>
OCTAVO_INLINE const typename CacheElement<dtype>::Type* values_at(const uint8_t* const* piece, int32_t key, int64_t head_dim) {
  return (const typename CacheElement<dtype>::Type*)piece[key / kPieceTokens] + (kPieceTokens + key % kPieceTokens) * head_dim;
}

// acc[r][c] += sum of weight * value over keys that all rows see, for the C chunks from first_chunk on.
template <int R, int C, CacheDtype dtype>
OCTAVO_INLINE void add_values(const float (*weights)[kTileKeys], int32_t begin, int32_t end, const KeyTile& tile, float* acc,
                              int64_t first_chunk, int64_t num_chunks) {
  int64_t column[C];
  F32 sums[R][C];
#pragma GCC unroll 4
  for (int c = 0; c < C; c++) {
    column[c] = value_column(first_chunk + c, tile.head_dim);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) sums[r][c] = load(acc + (r * num_chunks + first_chunk + c) * 16);
  }
  for (int32_t t = begin; t < end;) {
    const auto *values = values_at<dtype>(tile.piece, t, tile.head_dim), *next = values_at<dtype>(tile.next, t, tile.head_dim);
    const int32_t piece_end = (t / kPieceTokens + 1) * kPieceTokens, stop = piece_end < end ? piece_end : end;
    for (; t < stop; t++, values += tile.head_dim, next += tile.head_dim) {
      prefetch(next + column[0]);
      add_products<kTileKeys>(sums, [&](int c) { return CacheElement<dtype>::load16(values + column[c]); }, weights[0] + t);
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < C; c++)
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) store(acc + (r * num_chunks + first_chunk + c) * 16, sums[r][c]);
}

// The same for one row and keys that not all rows see: at the diagonal and at the edge of a window.
template <CacheDtype dtype>
void add_row_values(const float* weights, int32_t begin, int32_t end, const KeyTile& tile, float* acc, int64_t num_chunks) {
  for (int32_t t = begin; t < end; t++) {
    const auto* values = values_at<dtype>(tile.piece, t, tile.head_dim);
    for (int64_t c = 0; c < num_chunks; c++) {
      const F32 v = CacheElement<dtype>::load16(values + value_column(c, tile.head_dim));
      store(acc + 16 * c, fma(set1(weights[t]), v, load(acc + 16 * c)));
    }
  }
}

template <int R, CacheDtype dtype>
void attend_tile(const TileRows& rows, const KeyTile& tile) {
  constexpr int kWidth = vectors_per_row(R);
  const KeyRange range = visible_keys<R>(rows, tile.position);
  if (range.any_begin >= range.any_end) return;

  alignas(64) float scores[R][kTileKeys];
  for_visible_pieces<kWidth>(range, tile, [&](const uint8_t* const* piece, const uint8_t* const* next, int b) {
    score_pieces<R, kWidth, dtype>((const float*)rows.q, piece, next, tile.head_dim, scores, b);
  });

  const int64_t num_chunks = num_value_chunks(tile.head_dim);
  softmax_rows<R>(scores, range, tile.softcap, num_chunks, rows.state);

  // In the order of positions: keys before those that all rows see (or every key, if there are none), those, and keys after.
  const int32_t common = range.all_begin < range.all_end ? range.all_begin : kTileKeys;
  for (int r = 0; r < R; r++) {
    const int32_t end = range.end[r] < common ? range.end[r] : common;
    add_row_values<dtype>(scores[r], range.begin[r], end, tile, rows.state.acc + r * num_chunks * 16, num_chunks);
  }
  if (common == kTileKeys) return;
  int64_t c = 0;
  for (; c + kWidth <= num_chunks; c += kWidth)
    add_values<R, kWidth, dtype>(scores, common, range.all_end, tile, rows.state.acc, c, num_chunks);
  for (; c < num_chunks; c++) add_values<R, 1, dtype>(scores, common, range.all_end, tile, rows.state.acc, c, num_chunks);
  for (int r = 0; r < R; r++)
    add_row_values<dtype>(scores[r], range.all_end, range.end[r], tile, rows.state.acc + r * num_chunks * 16, num_chunks);
}

template <CacheDtype dtype, int... R>
TileKernel kernel_of_rows(int rows, std::integer_sequence<int, R...>) {
  static constexpr TileKernel small[] = {attend_tile<R + 1, dtype>...};
  return rows == kMaxTileRows ? attend_tile<kMaxTileRows, dtype> : small[rows - 1];
}

}  // namespace

TileKernel tile_kernel(CacheDtype dtype, int rows) {
  constexpr auto sizes = std::make_integer_sequence<int, kMaxSmallTileRows>();
  switch (dtype) {
    case CacheDtype::kF32: return kernel_of_rows<CacheDtype::kF32>(rows, sizes);
    case CacheDtype::kF16: return kernel_of_rows<CacheDtype::kF16>(rows, sizes);
    case CacheDtype::kBF16: return kernel_of_rows<CacheDtype::kBF16>(rows, sizes);
    case CacheDtype::kI8: return int8_tile_kernel(rows);
  }
  return nullptr;
}

}  // namespace OCTAVO_NS
