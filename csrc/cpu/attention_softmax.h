// What a row sees of a tile, and its online softmax over that: the same for every cache dtype.
#pragma once

#include "attention_tile.h"
#include "simd.h"

namespace OCTAVO_NS {

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

// score(piece, next, b) for pieces b .. b + W - 1, until all are done that some row sees. Where no row sees one of them, another stands in
// for it, which costs no extra case.
template <int W, class Score>
OCTAVO_INLINE void for_visible_pieces(const KeyRange& range, const KeyTile& tile, const Score& score) {
  const int first = range.any_begin / kPieceTokens, last = (range.any_end - 1) / kPieceTokens;
  for (int b = first / W * W; b <= last; b += W) {
    const uint8_t *piece[W], *next[W];
    for (int i = 0; i < W; i++) {
      piece[i] = tile.piece[b + i < first ? first : b + i > last ? last : b + i];
      next[i] = tile.next[b + i];
    }
    score(piece, next, b);
  }
}

// Scores of one row, those of keys outside [begin, end) -inf.
OCTAVO_INLINE void mask_scores(float* scores, int32_t begin, int32_t end, float softcap) {
  const F32 hidden = set1(-__builtin_inff());
#pragma GCC unroll 4
  for (int b = 0; b < kPieces; b++) {
    const int from = begin - b * kPieceTokens, to = end - b * kPieceTokens;
    F32 x = hidden;
    if (to > 0 && from < kPieceTokens) {
      x = load(scores + b * kPieceTokens);
      if (softcap != 0.0f) x = mul(set1(softcap), tanh(x));
      if (from > 0 || to < kPieceTokens) x = select(mask_and_not(mask_first(to), mask_first(from)), x, hidden);
    }
    store(scores + b * kPieceTokens, x);
  }
}

// Turn scores into weights, exp2(score - max), in place: 0 for keys that a row does not see. Rescale state and accumulator if the maximum
// moved. Row after row in each part, so that the latencies of one row hide in another's work.
template <int R>
OCTAVO_INLINE void softmax_rows(float (*scores)[kTileKeys], const KeyRange& range, float softcap, int64_t num_chunks,
                                const RowState& state) {
  float tile_max[R];
  for (int r = 0; r < R; r++) {
    const float* x = scores[r];
    mask_scores(scores[r], range.begin[r], range.end[r], softcap);
    tile_max[r] = reduce_max(max(max(load(x), load(x + 16)), max(load(x + 32), load(x + 48))));
  }
  for (int r = 0; r < R; r++) {
    if (!(tile_max[r] > state.max[r])) continue;
    float *sum = state.sum + r * kLanes, *acc = state.acc + r * num_chunks * 16;
    const F32 factor = exp2(set1(state.max[r] - tile_max[r]));  // 0 if these are the first keys
    store(sum, mul(load(sum), factor));
    for (int64_t c = 0; c < num_chunks; c++) store(acc + 16 * c, mul(load(acc + 16 * c), factor));
    state.max[r] = tile_max[r];
  }
  for (int r = 0; r < R; r++) {
    const F32 top = set1(state.max[r] == -__builtin_inff() ? 0.0f : state.max[r]);  // no key seen so far: weights are 0, not NaN
    F32 x[kPieces];
#pragma GCC unroll 4
    for (int b = 0; b < kPieces; b++) {
      x[b] = exp2(sub(load(scores[r] + b * kPieceTokens), top));
      store(scores[r] + b * kPieceTokens, x[b]);
    }
    float* sum = state.sum + r * kLanes;
    store(sum, add(load(sum), add(add(x[0], x[1]), add(x[2], x[3]))));
  }
}

}  // namespace OCTAVO_NS
