// The inner kernel of attention, one instance per number of rows and cache dtype.
//
// Whatever rows share a call, each row's arithmetic is the same: scores d = 0, 1, ...; one maximum and one rescaling per tile;
// values in the order of their positions, only those that the row sees (0 * v is no no-op for -0.0, Inf or a stale NaN).
#include "attention_tile.h"

#include <utility>

#include "kv_cache_element.h"

namespace OCTAVO_NS {

namespace {

// Key pieces, and chunks of value columns, per pass: enough independent sums to hide the latency of fma.
#if defined(OCTAVO_ISA_AVX512)
constexpr int vectors_per_row(int rows) { return rows <= 6 ? 4 : 2; }
constexpr bool kVectorsFirst = true;  // 32 registers: all vectors, then a weight at a time
#elif defined(OCTAVO_ISA_AVX2)
constexpr int vectors_per_row(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
constexpr bool kVectorsFirst = false;  // 16 registers: a vector at a time
#else
constexpr int vectors_per_row(int) { return 1; }
constexpr bool kVectorsFirst = false;
#endif

// sums[r][i] = fma(weight(r), vector(i), sums[r][i]).
template <int R, int W, class Vector, class Weight>
OCTAVO_INLINE void add_products(F32 (&sums)[R][W], Vector vector, Weight weight) {
  if constexpr (kVectorsFirst) {
    F32 v[W];
#pragma GCC unroll 4
    for (int i = 0; i < W; i++) v[i] = vector(i);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const F32 w = set1(weight(r));
#pragma GCC unroll 4
      for (int i = 0; i < W; i++) sums[r][i] = fma(w, v[i], sums[r][i]);
    }
  } else {
#pragma GCC unroll 4
    for (int i = 0; i < W; i++) {
      const F32 v = vector(i);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) sums[r][i] = fma(set1(weight(r)), v, sums[r][i]);
    }
  }
}

struct KeyRange {
  int32_t begin[kMaxTileRows], end[kMaxTileRows];  // per row, keys it sees, counted from the tile's first
  int32_t any_begin, any_end;                      // seen by some row
  int32_t all_begin, all_end;                      // seen by every row
};

template <int R>
KeyRange visible_keys(const TileRows& rows, int32_t position) {
  KeyRange range;
  range.any_begin = range.all_end = kTileKeys;
  range.any_end = range.all_begin = 0;
  for (int r = 0; r < R; r++) {
    const int32_t begin = rows.first[r] - position, end = rows.last[r] + 1 - position;
    range.begin[r] = begin < 0 ? 0 : begin > kTileKeys ? kTileKeys : begin;
    range.end[r] = end < 0 ? 0 : end > kTileKeys ? kTileKeys : end;
    range.any_begin = range.begin[r] < range.any_begin ? range.begin[r] : range.any_begin;
    range.any_end = range.end[r] > range.any_end ? range.end[r] : range.any_end;
    range.all_begin = range.begin[r] > range.all_begin ? range.begin[r] : range.all_begin;
    range.all_end = range.end[r] < range.all_end ? range.end[r] : range.all_end;
  }
  return range;
}

// scores[r][16 * b + i] = q_r . k of key i of piece b, for the B pieces from first_piece on.
template <int R, int B, CacheDtype dtype, bool kPrefetch>
OCTAVO_INLINE void score_pieces(const float* q, const typename CacheElement<dtype>::Type* const* keys, const char* const* next,
                                int64_t head_dim, float (*scores)[kTileKeys], int first_piece) {
  constexpr int kBytesPerD = 2 * kTileTokens * sizeof(typename CacheElement<dtype>::Type);  // of a piece
  F32 sums[R][B];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int b = 0; b < B; b++) sums[r][b] = zero();
  for (int64_t d = 0; d < head_dim; d++) {
    if constexpr (kPrefetch) {
#pragma GCC unroll 4
      for (int b = 0; b < B; b++)
#pragma GCC unroll 2
        for (int line = 0; line < kBytesPerD; line += 64) prefetch(next[b] + d * kBytesPerD + line);
    }
    add_products<R, B>(
        sums, [&](int b) { return CacheElement<dtype>::load16(keys[b] + d * kTileTokens); }, [&](int r) { return q[d * R + r]; });
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int b = 0; b < B; b++) store(scores[r] + (first_piece + b) * kTileTokens, sums[r][b]);
}

// Scores of one row to weights, in place; state and accumulator are rescaled if the maximum moved.
OCTAVO_INLINE void weigh_row(float* scores, int32_t begin, int32_t end, float softcap, int64_t num_chunks, float* max, float* sum,
                             float* acc) {
  const F32 hidden = set1(-__builtin_inff());
  F32 x[kPieces];
#pragma GCC unroll 4
  for (int b = 0; b < kPieces; b++) {
    const int from = begin - b * kTileTokens, to = end - b * kTileTokens;
    if (to <= 0 || from >= kTileTokens) {
      x[b] = hidden;
      continue;
    }
    x[b] = load(scores + b * kTileTokens);
    if (softcap != 0.0f) x[b] = mul(set1(softcap), tanh(x[b]));
    if (from > 0 || to < kTileTokens) x[b] = select(mask_and_not(mask_first(to), mask_first(from)), x[b], hidden);
  }
  const float tile_max = reduce_max(OCTAVO_NS::max(OCTAVO_NS::max(x[0], x[1]), OCTAVO_NS::max(x[2], x[3])));
  F32 total = load(sum);
  if (tile_max > *max) {
    const F32 factor = exp2(set1(*max - tile_max));  // 0 if these are the first keys
    total = mul(total, factor);
    for (int64_t c = 0; c < num_chunks; c++) store(acc + 16 * c, mul(load(acc + 16 * c), factor));
    *max = tile_max;
  }
  const F32 top = set1(*max);
#pragma GCC unroll 4
  for (int b = 0; b < kPieces; b++) {
    x[b] = exp2(sub(x[b], top));
    store(scores + b * kTileTokens, x[b]);
  }
  store(sum, add(total, add(add(x[0], x[1]), add(x[2], x[3]))));
}

template <CacheDtype dtype>
OCTAVO_INLINE const typename CacheElement<dtype>::Type* values_at(const KeyTile& tile, int32_t key) {
  return (const typename CacheElement<dtype>::Type*)tile.piece[key / kTileTokens] + (kTileTokens + key % kTileTokens) * tile.head_dim;
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
    const auto* values = values_at<dtype>(tile, t);
    const int32_t piece_end = (t / kTileTokens + 1) * kTileTokens, stop = piece_end < end ? piece_end : end;
    for (; t < stop; t++, values += tile.head_dim)
      add_products<R, C>(
          sums, [&](int c) { return CacheElement<dtype>::load16(values + column[c]); }, [&](int r) { return weights[r][t]; });
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
    const auto* values = values_at<dtype>(tile, t);
    for (int64_t c = 0; c < num_chunks; c++) {
      const F32 v = CacheElement<dtype>::load16(values + value_column(c, tile.head_dim));
      store(acc + 16 * c, fma(set1(weights[t]), v, load(acc + 16 * c)));
    }
  }
}

template <int R, CacheDtype dtype>
void attend_tile(const TileRows& rows, const KeyTile& tile) {
  using Element = typename CacheElement<dtype>::Type;
  constexpr int kWidth = vectors_per_row(R);
  const KeyRange range = visible_keys<R>(rows, tile.position);
  if (range.any_begin >= range.any_end) return;
  const int first = range.any_begin / kTileTokens, last = (range.any_end - 1) / kTileTokens;

  alignas(64) float scores[R][kTileKeys];
  for (int b = first / kWidth * kWidth; b <= last; b += kWidth) {
    const Element* keys[kWidth];
    const char* next[kWidth];
    for (int i = 0; i < kWidth; i++) {
      const int piece = b + i < first ? first : b + i > last ? last : b + i;  // a piece that nobody sees costs no extra case
      keys[i] = (const Element*)tile.piece[piece];
      next[i] = (const char*)tile.next[b + i];
    }
    if (next[0])
      score_pieces<R, kWidth, dtype, true>(rows.q, keys, next, tile.head_dim, scores, b);
    else
      score_pieces<R, kWidth, dtype, false>(rows.q, keys, next, tile.head_dim, scores, b);
  }

  const int64_t num_chunks = num_value_chunks(tile.head_dim);
  for (int r = 0; r < R; r++)
    weigh_row(scores[r], range.begin[r], range.end[r], tile.softcap, num_chunks, rows.state.max + r, rows.state.sum + r * kLanes,
              rows.state.acc + r * num_chunks * 16);

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
  }
  return nullptr;
}

}  // namespace OCTAVO_NS
