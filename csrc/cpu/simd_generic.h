// F32, I32 and Mask as GCC vectors of 64 bytes, for any CPU; the compiler splits them into the registers it has. See simd.h.
//
// fma is fused where the target has the instruction (ARM64). Where it has not (x86-64-v1), it is a product and a sum:
// one of the reasons why bits are promised within an ISA level only.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "isa.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace OCTAVO_NS {

typedef float V16f __attribute__((vector_size(64)));
typedef int32_t V16i __attribute__((vector_size(64)));
typedef uint32_t V16u __attribute__((vector_size(64)));
typedef int16_t V32s __attribute__((vector_size(64)));
typedef int8_t V32b __attribute__((vector_size(32)));

struct F32 { V16f v; };
struct I32 { V16i v; };
struct I16 { V32s v; };
struct Mask { V16i v; };  // all bits or none per lane

// Whether fma() rounds once.
#if defined(__FP_FAST_FMAF) || defined(__ARM_FEATURE_FMA)
constexpr bool kFusedMultiplyAdd = true;
#else
constexpr bool kFusedMultiplyAdd = false;
#endif

OCTAVO_INLINE F32 zero() { return {V16f{}}; }
OCTAVO_INLINE F32 set1(float x) { return {V16f{} + x}; }
OCTAVO_INLINE F32 load(const float* p) {
  F32 a;
  memcpy(&a.v, p, 64);
  return a;
}
OCTAVO_INLINE void store(float* p, F32 a) { memcpy(p, &a.v, 64); }
OCTAVO_INLINE F32 load_first(const float* p, int n) {
  F32 a = zero();
  memcpy(&a.v, p, 4 * (size_t)n);
  return a;
}
OCTAVO_INLINE void store_first(float* p, F32 a, int n) { memcpy(p, &a.v, 4 * (size_t)n); }

OCTAVO_INLINE F32 add(F32 a, F32 b) { return {a.v + b.v}; }
OCTAVO_INLINE F32 sub(F32 a, F32 b) { return {a.v - b.v}; }
OCTAVO_INLINE F32 mul(F32 a, F32 b) { return {a.v * b.v}; }
OCTAVO_INLINE F32 div(F32 a, F32 b) { return {a.v / b.v}; }
OCTAVO_INLINE F32 sqrt(F32 a) {
  for (int i = 0; i < 16; i++) a.v[i] = __builtin_sqrtf(a.v[i]);
  return a;
}
OCTAVO_INLINE F32 max(F32 a, F32 b) { return {a.v > b.v ? a.v : b.v}; }
OCTAVO_INLINE F32 min(F32 a, F32 b) { return {a.v < b.v ? a.v : b.v}; }
OCTAVO_INLINE F32 fma(F32 a, F32 b, F32 c) {  // a * b + c
  if (!kFusedMultiplyAdd) return {a.v * b.v + c.v};
  for (int i = 0; i < 16; i++) c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
  return c;
}
OCTAVO_INLINE F32 abs(F32 a) { return {(V16f)((V16u)a.v & 0x7fffffffu)}; }
OCTAVO_INLINE F32 round_nearest(F32 a) {  // to nearest even, for |a| < 2^22
  const V16f magic = V16f{} + 12582912.0f;
  return {(a.v + magic) - magic};
}

OCTAVO_INLINE Mask mask_first(int n) {
  const V16i lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return {lane < n};
}
OCTAVO_INLINE Mask mask_and_not(Mask a, Mask b) { return {a.v & ~b.v}; }  // in a and not in b
OCTAVO_INLINE Mask cmp_ge(F32 a, F32 b) { return {a.v >= b.v}; }
OCTAVO_INLINE Mask cmp_gt(F32 a, F32 b) { return {a.v > b.v}; }
OCTAVO_INLINE F32 select(Mask m, F32 yes, F32 no) { return {m.v ? yes.v : no.v}; }
OCTAVO_INLINE uint32_t to_bits(Mask m) {  // bit i: lane i
  uint32_t bits = 0;
  for (int i = 0; i < 16; i++) bits |= ((uint32_t)m.v[i] & 1u) << i;
  return bits;
}
OCTAVO_INLINE Mask from_bits(uint32_t bits) {
  const V16i lane = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
  return {(lane & (int32_t)bits) != 0};
}
OCTAVO_INLINE float first_lane(F32 a) { return a.v[0]; }

OCTAVO_INLINE void store_i32(int32_t* p, I32 a) { memcpy(p, &a.v, 64); }
OCTAVO_INLINE I32 to_i32(F32 a) { return {__builtin_convertvector(round_nearest(a).v, V16i)}; }  // rounds to nearest even
OCTAVO_INLINE F32 to_f32(I32 a) { return {__builtin_convertvector(a.v, V16f)}; }
OCTAVO_INLINE F32 pow2(I32 n) { return {(V16f)((n.v + 127) << 23)}; }  // 2^n, n in -126 .. 127

OCTAVO_INLINE float f16_to_f32(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, fraction = h & 0x3ffu;
  uint32_t bits;
  if (exponent == 0) {  // zero or subnormal: fraction x 2^-24 is exact in float
    const float magnitude = (float)fraction * 5.9604644775390625e-8f;
    memcpy(&bits, &magnitude, 4);
    bits |= sign;
  } else if (exponent == 31) {
    bits = sign | 0x7f800000u | (fraction << 13);
  } else {
    bits = sign | ((exponent + 112) << 23) | (fraction << 13);
  }
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
OCTAVO_INLINE uint16_t f32_to_f16(float f) {  // round to nearest even
  uint32_t bits;
  memcpy(&bits, &f, 4);
  const uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) return (uint16_t)(sign | 0x7c00u | (magnitude > 0x7f800000u ? 0x200u : 0u));
  if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // subnormal half: adding 0.5 puts the rounded fraction in the low bits
    float m;
    memcpy(&m, &magnitude, 4);
    m += 0.5f;
    uint32_t rounded;
    memcpy(&rounded, &m, 4);
    return (uint16_t)(sign | (rounded - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

OCTAVO_INLINE F32 load_f16(const uint16_t* p) {
  F32 a;
  for (int i = 0; i < 16; i++) a.v[i] = f16_to_f32(p[i]);
  return a;
}
OCTAVO_INLINE F32 load_bf16(const uint16_t* p) {
  V16u bits;
  for (int i = 0; i < 16; i++) bits[i] = (uint32_t)p[i] << 16;
  return {(V16f)bits};
}
OCTAVO_INLINE void store_f16(uint16_t* p, F32 a) {  // round to nearest even; the caller saturates
  for (int i = 0; i < 16; i++) p[i] = f32_to_f16(a.v[i]);
}
OCTAVO_INLINE void store_bf16(uint16_t* p, F32 a) {  // round to nearest even; NaN stays NaN
  const V16u bits = (V16u)a.v;
  const V16u rounded = bits + (((bits >> 16) & 1u) + 0x7fffu);
  const V16u kept = (a.v == a.v ? rounded : bits | 0x400000u) >> 16;
  for (int i = 0; i < 16; i++) p[i] = (uint16_t)kept[i];
}
OCTAVO_INLINE F32 load_u8(const uint8_t* p) {
  F32 a;
  for (int i = 0; i < 16; i++) a.v[i] = (float)p[i];
  return a;
}
OCTAVO_INLINE F32 load_low_nibbles(const uint8_t* p) {
  F32 a;
  for (int i = 0; i < 16; i++) a.v[i] = (float)(p[i] & 15);
  return a;
}
OCTAVO_INLINE F32 load_high_nibbles(const uint8_t* p) {
  F32 a;
  for (int i = 0; i < 16; i++) a.v[i] = (float)(p[i] >> 4);
  return a;
}
OCTAVO_INLINE F32 load_i8(const int8_t* p) {
  F32 a;
  for (int i = 0; i < 16; i++) a.v[i] = (float)p[i];
  return a;
}

OCTAVO_INLINE void store_i8(int8_t* p, F32 a) {  // values are integers -128 .. 127
  for (int i = 0; i < 16; i++) p[i] = (int8_t)a.v[i];
}

OCTAVO_INLINE void store_i16(int16_t* p, F32 a) {  // rounds to nearest even; values are in range
  a = round_nearest(a);
  for (int i = 0; i < 16; i++) p[i] = (int16_t)a.v[i];
}
OCTAVO_INLINE I32 zero_i32() { return {V16i{}}; }
OCTAVO_INLINE I16 load_i8_as_i16(const int8_t* p) {
  V32b a;
  memcpy(&a, p, 32);
  return {__builtin_convertvector(a, V32s)};
}
// Lane i: sum + pair i of a . pair, exact.
OCTAVO_INLINE I32 dot_pair(I32 sum, I16 a, const int16_t* pair) {
#if defined(__SSE2__)  // a 16-bit pmaddwd, where 32-bit products do not exist
  int32_t bits;
  memcpy(&bits, pair, 4);
  __m128i lanes[4], products[4];
  memcpy(lanes, &a.v, 64);
  for (int i = 0; i < 4; i++) products[i] = _mm_madd_epi16(lanes[i], _mm_set1_epi32(bits));
  V16i added;
  memcpy(&added, products, 64);
  return {sum.v + added};
#else
  const V16i both = (V16i)a.v;
  return {sum.v + (both << 16 >> 16) * (int32_t)pair[0] + (both >> 16) * (int32_t)pair[1]};  // the lower address is the lower half
#endif
}

template <int S>
OCTAVO_INLINE F32 swap_lanes(F32 a) {  // lane i: lane i ^ S of a; S is 1, 2, 4 or 8
  F32 b;
  for (int i = 0; i < 16; i++) b.v[i] = a.v[i ^ S];
  return b;
}

// Horizontal: lanes i and i + 8, then i and i + 4, i + 2, i + 1.
OCTAVO_INLINE float reduce_add(F32 a) {
  float s[16];
  memcpy(s, &a.v, 64);
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; i++) s[i] = s[i] + s[i + half];
  return s[0];
}
OCTAVO_INLINE float reduce_max(F32 a) {
  float m = a.v[0];
  for (int i = 1; i < 16; i++) m = a.v[i] > m ? a.v[i] : m;
  return m;
}

// Lane by lane the larger |value|, or NaN if either is: as integers, magnitudes are in order, with NaN above infinity.
OCTAVO_INLINE F32 max_magnitude(F32 a, F32 b) {
  const V16i bits_a = (V16i)abs(a).v, bits_b = (V16i)abs(b).v;
  return {(V16f)(bits_a > bits_b ? bits_a : bits_b)};
}
OCTAVO_INLINE float reduce_magnitude(F32 a) {
  const V16i bits = (V16i)abs(a).v;
  int32_t most = 0;
  for (int i = 0; i < 16; i++) most = bits[i] > most ? bits[i] : most;
  float largest;
  memcpy(&largest, &most, 4);
  return largest;
}

OCTAVO_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }
OCTAVO_INLINE void prefetch_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace OCTAVO_NS
