// The inner kernel of attention: a few query rows of one kv head against one tile of 64 keys.
#pragma once

#include "attention.h"

namespace OCTAVO_NS {

constexpr int kTileKeys = 64;  // keys of a tile; it starts at a multiple of 64 absolute positions
constexpr int kPieces = kTileKeys / kPieceTokens;

// Rows of a tile: most are of kMaxTileRows, whose accumulators fill the registers (32 of 16 lanes, 16 of 8 lanes, 16 or 32 of
// 4 lanes); what is left over goes in smaller ones.
#if defined(OCTAVO_ISA_AVX512)
constexpr int kMaxTileRows = 12, kMaxSmallTileRows = 6;
#elif defined(OCTAVO_ISA_AVX2)
constexpr int kMaxTileRows = 6, kMaxSmallTileRows = 5;
#else
constexpr int kMaxTileRows = 2, kMaxSmallTileRows = 1;
#endif

// Rows of the next tile when `rows_left` are to be done.
inline int32_t next_tile_rows(int32_t rows_left) {
  if (rows_left >= kMaxTileRows) return kMaxTileRows;
  return rows_left <= kMaxSmallTileRows ? rows_left : (rows_left + 1) / 2;
}

// Online softmax of some rows over the keys seen so far; scores are in units of log2(e).
struct RowState {
  float* max;  // [rows]
  float* sum;  // [rows, 16]  per lane; added up at the end of a segment
  float* acc;  // [rows, ceil(head_dim / 16) * 16]  see value_column
};

struct TileRows {
  const void* q;         // [head_dim, rows]  float, times scale and log2(e); for int8 caches see quantize_query
  const float* q_scale;  // [rows]  for int8 caches
  const int32_t* first;  // [rows]  first and last position each row sees
  const int32_t* last;
  RowState state;
};

struct KeyTile {
  int32_t position;               // of its first key
  const uint8_t* piece[kPieces];  // of 16 tokens each; null where no row of the unit sees one
  const uint8_t* next[kPieces];   // those of the tile that will be read next: each read here prefetches the same bytes there
  int32_t head_dim;
  float softcap;                  // in units of log2(e); 0: none
};

// Add the tile's visible keys to the state of each row; a row that sees none of them keeps its state as it is.
using TileKernel = void (*)(const TileRows& rows, const KeyTile& tile);
TileKernel tile_kernel(CacheDtype dtype, int rows);  // for a number of rows that next_tile_rows gives

// Rotate a query as keys are, and round it, times `factor`, to int16 times *scale. Element d goes to out[d / 2 * 2 * rows + d % 2], up to
// padded_head_dim with zeros.
void quantize_query(const float* q, float factor, int32_t head_dim, int32_t rows, int16_t* out, float* scale);
TileKernel int8_tile_kernel(int rows);

// The accumulator's chunk c of 16 lanes holds value columns value_column(c) .. + 15: the last chunk of a head_dim that is
// not a multiple of 16 overlaps the one before, and both compute the same bits.
inline int64_t num_value_chunks(int64_t head_dim) { return (head_dim + 15) / 16; }
inline int64_t value_column(int64_t chunk, int64_t head_dim) { return 16 * chunk + 16 <= head_dim ? 16 * chunk : head_dim - 16; }

}  // namespace OCTAVO_NS
