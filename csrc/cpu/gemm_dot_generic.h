// Lines and integer sums for any CPU: products and sums of integers in float, exact below 2^24. See gemm_dot.h.
#pragma once

#include <cstring>

#include "act_block.h"
#include "simd.h"

namespace OCTAVO_NS {

struct Line { V16u v; };  // a column a lane, its first k in the lowest byte

OCTAVO_INLINE Line load_line(const uint8_t* p) {
  Line a;
  memcpy(&a.v, p, 64);
  return a;
}
OCTAVO_INLINE void store_line(uint8_t* p, Line a) { memcpy(p, &a.v, 64); }
OCTAVO_INLINE Line low_nibbles(Line a) { return {a.v & 0x0f0f0f0fu}; }
OCTAVO_INLINE Line high_nibbles(Line a) { return {(a.v >> 4) & 0x0f0f0f0fu}; }

// q | (bits << count & kMask) in every byte; kMask keeps what a shift moved in from the neighbour byte out.
template <int kMask>
OCTAVO_INLINE Line or_shifted(Line q, Line bits, int count) {
  const V16u shifted = count >= 0 ? bits.v << count : bits.v >> -count;
  return {q.v | (shifted & (kMask * 0x01010101u))};
}

OCTAVO_INLINE Line no_bits() { return {V16u{}}; }

// table[place] for every byte; `places` are below 16 and the table's line has it four times.
OCTAVO_INLINE Line look_up(Line table, Line places) {
  uint8_t values[64], bytes[64];
  memcpy(values, &table.v, 64);
  memcpy(bytes, &places.v, 64);
  for (int i = 0; i < 64; i++) bytes[i] = values[bytes[i]];
  return load_line(bytes);
}

// The four k of a line as floats, 16 columns each.
OCTAVO_INLINE void line_to_f32(Line a, F32 out[4]) {
  for (int i = 0; i < 4; i++) out[i] = to_f32(I32{(V16i)((a.v >> (8 * i)) & 255u)});
}

template <int kBits>
struct Factor { F32 k[4]; };

template <int kBits>
OCTAVO_INLINE Line to_kept(Line a) { return a; }

template <int kBits>
OCTAVO_INLINE Factor<kBits> kept_factor(Line a) {
  Factor<kBits> f;
  line_to_f32(a, f.k);
  return f;
}

struct FourActivations { float k[4]; };
OCTAVO_INLINE FourActivations broadcast_four(const int8_t* p) {
  return {{(float)p[0], (float)p[1], (float)p[2], (float)p[3]}};
}

template <class Math>
struct IntSum {
  V16f sum;

  OCTAVO_MEMBER void begin(const SumStart* start) {
    sum = V16f{} + (start ? (float)(start->all + (Math::kTwoStarts ? start[1].all : 0)) : 0.0f);
  }
  OCTAVO_MEMBER void add_line(const Factor<Math::kBits>& w, FourActivations x, int) {
    for (int i = 0; i < 4; i++) sum += w.k[i].v * x.k[i];
  }
  OCTAVO_MEMBER F32 total() const { return {sum}; }
};

}  // namespace OCTAVO_NS
