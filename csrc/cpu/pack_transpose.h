// Writes rows of 2- or 4-byte values as the columns of a panel, in square tiles of 16-byte vectors.
#pragma once

#include <cstdint>
#include <cstring>

#include "gemm.h"

namespace OCTAVO_NS {

typedef uint8_t Vector16u8 __attribute__((vector_size(16)));
typedef uint16_t Vector8u16 __attribute__((vector_size(16)));
typedef uint32_t Vector4u32 __attribute__((vector_size(16)));

#if defined(__clang__)
#define OCTAVO_SHUFFLE(V, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define OCTAVO_SHUFFLE(V, a, b, ...) __builtin_shuffle(a, b, (V){__VA_ARGS__})
#endif

OCTAVO_INLINE Vector16u8 interleave_low(Vector16u8 a, Vector16u8 b) {
  return OCTAVO_SHUFFLE(Vector16u8, a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
OCTAVO_INLINE Vector16u8 interleave_high(Vector16u8 a, Vector16u8 b) {
  return OCTAVO_SHUFFLE(Vector16u8, a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
OCTAVO_INLINE Vector8u16 interleave_low(Vector8u16 a, Vector8u16 b) {
  return OCTAVO_SHUFFLE(Vector8u16, a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
OCTAVO_INLINE Vector8u16 interleave_high(Vector8u16 a, Vector8u16 b) {
  return OCTAVO_SHUFFLE(Vector8u16, a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}
OCTAVO_INLINE Vector4u32 interleave_low(Vector4u32 a, Vector4u32 b) { return OCTAVO_SHUFFLE(Vector4u32, a, b, 0, 4, 1, 5); }
OCTAVO_INLINE Vector4u32 interleave_high(Vector4u32 a, Vector4u32 b) { return OCTAVO_SHUFFLE(Vector4u32, a, b, 2, 6, 3, 7); }
#undef OCTAVO_SHUFFLE

// Interleaving the first half of the rows with the second, log2(rows) times, transposes a square.
template <class V, int kRows>
OCTAVO_INLINE void transpose_square(V (&rows)[kRows]) {
  for (int stage = 1; stage < kRows; stage *= 2) {
    V mixed[kRows];
#pragma GCC unroll 4
    for (int i = 0; i < kRows / 2; i++) {
      mixed[2 * i] = interleave_low(rows[i], rows[i + kRows / 2]);
      mixed[2 * i + 1] = interleave_high(rows[i], rows[i + kRows / 2]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; i++) rows[i] = mixed[i];
  }
}

// panel[k][c] = rows[c][k] for c < columns, k < K; V is a vector of the values' type.
template <class V>
void transpose_rows(const uint8_t* const* rows, int columns, int64_t K, uint8_t* panel) {
  constexpr int kWidth = sizeof(V) / sizeof(V{}[0]), kValue = 16 / kWidth;
  for (int c = 0; c < columns; c += kWidth) {
    int64_t k = 0;
    for (; c + kWidth <= columns && k + kWidth <= K; k += kWidth) {
      V square[kWidth];
#pragma GCC unroll 8
      for (int i = 0; i < kWidth; i++) memcpy(&square[i], rows[c + i] + kValue * k, 16);
      transpose_square(square);
#pragma GCC unroll 8
      for (int i = 0; i < kWidth; i++) memcpy(panel + kValue * ((k + i) * kPanelColumns + c), &square[i], 16);
    }
    for (; k < K; k++) {
      for (int i = c; i < columns && i < c + kWidth; i++) {
        memcpy(panel + kValue * (k * kPanelColumns + i), rows[i] + kValue * k, kValue);
      }
    }
  }
}

}  // namespace OCTAVO_NS
