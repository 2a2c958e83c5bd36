// Lines and integer sums for AVX2: maddubs, summed in int16 as long as that is exact. See gemm_dot.h.
#pragma once

#include <cstring>

#include "act_block.h"
#include "simd.h"

namespace OCTAVO_NS {

struct Line { __m256i lo, hi; };

OCTAVO_INLINE Line load_line(const uint8_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
}
OCTAVO_INLINE void store_line(uint8_t* p, Line a) {
  _mm256_storeu_si256((__m256i*)p, a.lo);
  _mm256_storeu_si256((__m256i*)(p + 32), a.hi);
}
OCTAVO_INLINE Line low_nibbles(Line a) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)};
}
OCTAVO_INLINE Line high_nibbles(Line a) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(_mm256_srli_epi16(a.lo, 4), mask), _mm256_and_si256(_mm256_srli_epi16(a.hi, 4), mask)};
}

OCTAVO_INLINE __m256i shift_left(__m256i a, int count) {  // negative: right
  return count > 0 ? _mm256_slli_epi16(a, count) : count < 0 ? _mm256_srli_epi16(a, -count) : a;
}

// q | (bits << count & kMask) in every byte; kMask keeps what a shift moved in from the neighbour byte out.
template <int kMask>
OCTAVO_INLINE Line or_shifted(Line q, Line bits, int count) {
  const __m256i mask = _mm256_set1_epi8(kMask);
  return {_mm256_or_si256(q.lo, _mm256_and_si256(shift_left(bits.lo, count), mask)),
          _mm256_or_si256(q.hi, _mm256_and_si256(shift_left(bits.hi, count), mask))};
}

OCTAVO_INLINE Line no_bits() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }

// table[place] for every byte; `places` are below 16 and the table's line has it four times.
OCTAVO_INLINE Line look_up(Line table, Line places) {
  return {_mm256_shuffle_epi8(table.lo, places.lo), _mm256_shuffle_epi8(table.hi, places.hi)};
}

// The four k of a line as floats, 16 columns each.
OCTAVO_INLINE void line_to_f32(Line a, F32 out[4]) {
  const __m256i byte = _mm256_set1_epi32(255);
  for (int i = 0; i < 4; i++) {
    out[i] = {_mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(a.lo, 8 * i), byte)),
              _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(a.hi, 8 * i), byte))};
  }
}

template <int kBits>
struct Factor { __m256i lo, hi; };

// Eight bits need a sign: maddubs multiplies |w| with x * sign(w), since 255 * 127 * 2 would not fit an int16.
template <>
struct Factor<8> { __m256i lo, hi, abs_lo, abs_hi; };

// The form in which an expanded line is kept.
template <int kBits>
OCTAVO_INLINE Line to_kept(Line a) {
  if constexpr (kBits < 8) return a;
  const __m256i zero_point = _mm256_set1_epi8((char)0x80);
  return {_mm256_xor_si256(a.lo, zero_point), _mm256_xor_si256(a.hi, zero_point)};
}

template <int kBits>
OCTAVO_INLINE Factor<kBits> kept_factor(Line a) {
  if constexpr (kBits < 8) return {a.lo, a.hi};
  else return {a.lo, a.hi, _mm256_abs_epi8(a.lo), _mm256_abs_epi8(a.hi)};
}

struct FourActivations { __m256i v; };
OCTAVO_INLINE FourActivations broadcast_four(const int8_t* p) {
  int32_t bits;
  memcpy(&bits, p, 4);
  return {_mm256_set1_epi32(bits)};
}

OCTAVO_INLINE I32 widen(__m256i lo, __m256i hi) {  // add neighbouring int16
  const __m256i one = _mm256_set1_epi16(1);
  return {_mm256_madd_epi16(lo, one), _mm256_madd_epi16(hi, one)};
}

// Keeps the compiler from regrouping a chain of integer sums, which would need more registers than there are.
OCTAVO_INLINE void keep_chain(__m256i& a) { __asm__("" : "+x"(a)); }

// Two products a line in each int16. It holds those of 8 lines of 4 bits (15 * 127 * 16 = 30,480), 4 of 5 bits, 2 of 6 bits. With a
// zero point the sum starts at what is to be subtracted, and what counts is |w - zero point|: 8 lines of 5 bits (16 * 127 * 16 = 32,512), 4
// of 6 bits, since an int16 that wraps on the way still ends at the right value.
template <class Math, int kBits = Math::kBits>
struct IntSum {
  static constexpr int kLargest = Math::kZeroPoint ? Math::kZeroPoint : (1 << kBits) - 1;
  static constexpr int kMostLines = 32767 / (kLargest * 127 * 2);
  static constexpr int kLinesInInt16 = kMostLines >= 8 ? 8 : kMostLines >= 4 ? 4 : 2;
  static_assert(!Math::kZeroPoint || kLinesInInt16 >= Math::kLines / (Math::kTwoStarts ? 2 : 1), "a start serves one sum in int16");

  __m256i lo, hi;
  I32 wide;
  const SumStart* second;

  OCTAVO_MEMBER void begin(const SumStart* start) {
    if (start) lo = hi = broadcast_four((const int8_t*)start).v;
    second = start + Math::kTwoStarts;
  }
  OCTAVO_MEMBER void add_line(Factor<kBits> w, FourActivations x, int j) {
    const __m256i product_lo = _mm256_maddubs_epi16(w.lo, x.v), product_hi = _mm256_maddubs_epi16(w.hi, x.v);
    const bool is_first = !Math::kZeroPoint && j % kLinesInInt16 == 0;
    if (Math::kTwoStarts && j == Math::kLines / 2) lo = hi = broadcast_four((const int8_t*)second).v;
    lo = is_first ? product_lo : _mm256_add_epi16(lo, product_lo);
    hi = is_first ? product_hi : _mm256_add_epi16(hi, product_hi);
    keep_chain(lo);
    keep_chain(hi);
    if (j % kLinesInInt16 == kLinesInInt16 - 1 || j == Math::kLines - 1) {
      wide = j < kLinesInInt16 ? widen(lo, hi) : add(wide, widen(lo, hi));
    }
  }
  OCTAVO_MEMBER F32 total() const { return to_f32(wide); }
};

template <class Math>
struct IntSum<Math, 8> {
  I32 wide;

  OCTAVO_MEMBER void begin(const SumStart*) {}  // signed products: the zero point is gone already
  OCTAVO_MEMBER void add_line(Factor<8> w, FourActivations x, int j) {
    const I32 products = widen(_mm256_maddubs_epi16(w.abs_lo, _mm256_sign_epi8(x.v, w.lo)),
                               _mm256_maddubs_epi16(w.abs_hi, _mm256_sign_epi8(x.v, w.hi)));
    wide = j == 0 ? products : add(wide, products);
    keep_chain(wide.lo);
    keep_chain(wide.hi);
  }
  OCTAVO_MEMBER F32 total() const { return to_f32(wide); }
};

}  // namespace OCTAVO_NS
