// Lines and integer sums for AVX-512 VNNI: one dpbusd per line and row. See gemm_dot.h.
#pragma once

#include <cstring>

#include "act_block.h"
#include "simd.h"

namespace OCTAVO_NS {

struct Line { __m512i v; };

OCTAVO_INLINE Line load_line(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
OCTAVO_INLINE void store_line(uint8_t* p, Line a) { _mm512_storeu_si512(p, a.v); }
OCTAVO_INLINE Line low_nibbles(Line a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
OCTAVO_INLINE Line high_nibbles(Line a) { return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))}; }

OCTAVO_INLINE __m512i shift_left(__m512i a, int count) {  // negative: right. Shifts take immediates only
  switch (count) {
    case 5: return _mm512_slli_epi16(a, 5);
    case 4: return _mm512_slli_epi16(a, 4);
    case 3: return _mm512_slli_epi16(a, 3);
    case 2: return _mm512_slli_epi16(a, 2);
    case 1: return _mm512_slli_epi16(a, 1);
    case -1: return _mm512_srli_epi16(a, 1);
    case -2: return _mm512_srli_epi16(a, 2);
    case -3: return _mm512_srli_epi16(a, 3);
    case -4: return _mm512_srli_epi16(a, 4);
    case -6: return _mm512_srli_epi16(a, 6);
    default: return a;
  }
}

// q | (bits << count & kMask) in every byte; kMask keeps what a shift moved in from the neighbour byte out.
template <int kMask>
OCTAVO_INLINE Line or_shifted(Line q, Line bits, int count) {
  constexpr int kAOrBAndC = 0xf8;
  return {_mm512_ternarylogic_epi32(q.v, shift_left(bits.v, count), _mm512_set1_epi8(kMask), kAOrBAndC)};
}

OCTAVO_INLINE Line no_bits() { return {_mm512_setzero_si512()}; }

// table[place] for every byte; `places` are below 16 and the table's line has it four times.
OCTAVO_INLINE Line look_up(Line table, Line places) { return {_mm512_shuffle_epi8(table.v, places.v)}; }

// The four k of a line as floats, 16 columns each.
OCTAVO_INLINE void line_to_f32(Line a, F32 out[4]) {
  const __m512i byte = _mm512_set1_epi32(255);
  out[0] = {_mm512_cvtepi32_ps(_mm512_and_si512(a.v, byte))};
  out[1] = {_mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(a.v, 8), byte))};
  out[2] = {_mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(a.v, 16), byte))};
  out[3] = {_mm512_cvtepi32_ps(_mm512_srli_epi32(a.v, 24))};
}

template <int kBits>
using Factor = Line;

template <int kBits>
OCTAVO_INLINE Line to_kept(Line a) { return a; }

template <int kBits>
OCTAVO_INLINE Factor<kBits> kept_factor(Line a) { return a; }

struct FourActivations { __m512i v; };
OCTAVO_INLINE FourActivations broadcast_four(const int8_t* p) {
  int32_t bits;
  memcpy(&bits, p, 4);
  return {_mm512_set1_epi32(bits)};
}

template <class Math>
struct IntSum {
  __m512i v;

  OCTAVO_MEMBER void begin(const SumStart* start) {
    v = start ? _mm512_set1_epi32(start->all + (Math::kTwoStarts ? start[1].all : 0)) : _mm512_setzero_si512();
  }
  OCTAVO_MEMBER void add_line(Factor<Math::kBits> w, FourActivations x, int) { v = _mm512_dpbusd_epi32(v, w.v, x.v); }
  OCTAVO_MEMBER F32 total() const { return {_mm512_cvtepi32_ps(v)}; }
};

}  // namespace OCTAVO_NS
