// F32, I32 and Mask for AVX2 with FMA and F16C: two ymm registers. See simd.h.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "isa.h"

namespace OCTAVO_NS {

struct F32 { __m256 lo, hi; };
struct I32 { __m256i lo, hi; };
struct I16 { __m256i lo, hi; };
struct Mask { __m256 lo, hi; };

// Whether fma() rounds once.
constexpr bool kFusedMultiplyAdd = true;

OCTAVO_INLINE F32 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
OCTAVO_INLINE F32 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
OCTAVO_INLINE F32 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
OCTAVO_INLINE void store(float* p, F32 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}

OCTAVO_INLINE F32 add(F32 a, F32 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
OCTAVO_INLINE F32 sub(F32 a, F32 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
OCTAVO_INLINE F32 mul(F32 a, F32 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
OCTAVO_INLINE F32 div(F32 a, F32 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
OCTAVO_INLINE F32 sqrt(F32 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
OCTAVO_INLINE F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
OCTAVO_INLINE F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
OCTAVO_INLINE F32 fma(F32 a, F32 b, F32 c) {  // a * b + c
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
OCTAVO_INLINE F32 abs(F32 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
OCTAVO_INLINE F32 round_nearest(F32 a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}

OCTAVO_INLINE Mask mask_first(int n) {
  const __m256i count = _mm256_set1_epi32(n);
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i lane_hi = _mm256_add_epi32(lane, _mm256_set1_epi32(8));
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(count, lane)), _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, lane_hi))};
}
OCTAVO_INLINE Mask mask_and_not(Mask a, Mask b) {  // in a and not in b
  return {_mm256_andnot_ps(b.lo, a.lo), _mm256_andnot_ps(b.hi, a.hi)};
}
OCTAVO_INLINE Mask cmp_ge(F32 a, F32 b) { return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ)}; }
OCTAVO_INLINE Mask cmp_gt(F32 a, F32 b) { return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ)}; }
OCTAVO_INLINE F32 select(Mask m, F32 yes, F32 no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}
OCTAVO_INLINE uint32_t to_bits(Mask m) {  // bit i: lane i
  return (uint32_t)_mm256_movemask_ps(m.lo) | (uint32_t)_mm256_movemask_ps(m.hi) << 8;
}
OCTAVO_INLINE Mask from_bits(uint32_t bits) {
  const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i lane_hi = _mm256_slli_epi32(lane, 8);
  const __m256i all = _mm256_set1_epi32((int)bits);
  return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, lane), lane)),
          _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, lane_hi), lane_hi))};
}
OCTAVO_INLINE float first_lane(F32 a) { return _mm256_cvtss_f32(a.lo); }
OCTAVO_INLINE F32 load_first(const float* p, int n) {
  const Mask m = mask_first(n);
  return {_mm256_maskload_ps(p, _mm256_castps_si256(m.lo)), _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.hi))};
}
OCTAVO_INLINE void store_first(float* p, F32 a, int n) {
  const Mask m = mask_first(n);
  _mm256_maskstore_ps(p, _mm256_castps_si256(m.lo), a.lo);
  _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.hi), a.hi);
}

OCTAVO_INLINE I32 add(I32 a, I32 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
OCTAVO_INLINE void store_i32(int32_t* p, I32 a) {
  _mm256_storeu_si256((__m256i*)p, a.lo);
  _mm256_storeu_si256((__m256i*)(p + 8), a.hi);
}
OCTAVO_INLINE I32 to_i32(F32 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }  // rounds to nearest even
OCTAVO_INLINE F32 to_f32(I32 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
OCTAVO_INLINE F32 pow2(I32 n) {  // 2^n, n in -126 .. 127
  const __m256i bias = _mm256_set1_epi32(127);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.lo, bias), 23)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.hi, bias), 23))};
}

OCTAVO_INLINE F32 load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
OCTAVO_INLINE F32 load_bf16(const uint16_t* p) {
  const __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
  const __m256i hi = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(p + 8)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}
OCTAVO_INLINE void store_f16(uint16_t* p, F32 a) {  // round to nearest even; the caller saturates
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
OCTAVO_INLINE __m256i bf16_bits(__m256 a) {  // in the low 16 bits of each lane, rounded to nearest even; NaN stays NaN
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
OCTAVO_INLINE void store_bf16(uint16_t* p, F32 a) {  // round to nearest even
  const __m256i pairs = _mm256_packus_epi32(bf16_bits(a.lo), bf16_bits(a.hi));  // packs within 128-bit halves
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(pairs, _MM_SHUFFLE(3, 1, 2, 0)));
}
OCTAVO_INLINE F32 u8_to_f32(__m128i b) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(b)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(b, 8)))};
}
OCTAVO_INLINE F32 load_u8(const uint8_t* p) { return u8_to_f32(_mm_loadu_si128((const __m128i*)p)); }
OCTAVO_INLINE F32 load_low_nibbles(const uint8_t* p) {
  return u8_to_f32(_mm_and_si128(_mm_loadu_si128((const __m128i*)p), _mm_set1_epi8(15)));
}
OCTAVO_INLINE F32 load_high_nibbles(const uint8_t* p) {
  return u8_to_f32(_mm_and_si128(_mm_srli_epi16(_mm_loadu_si128((const __m128i*)p), 4), _mm_set1_epi8(15)));
}
OCTAVO_INLINE F32 load_i8(const int8_t* p) {
  const __m256i lo = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p));
  const __m256i hi = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)));
  return {_mm256_cvtepi32_ps(lo), _mm256_cvtepi32_ps(hi)};
}

OCTAVO_INLINE void store_i8(int8_t* p, F32 a) {  // values are integers -128 .. 127
  const __m256i halves = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
  const __m256i order = _mm256_permute4x64_epi64(halves, 0xd8);  // packs works within 128-bit lanes
  _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(order), _mm256_extracti128_si256(order, 1)));
}

OCTAVO_INLINE void store_i16(int16_t* p, F32 a) {  // rounds to nearest even; values are in range
  const __m256i pairs = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));  // packs within 128-bit halves
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(pairs, 0xd8));
}
OCTAVO_INLINE I32 zero_i32() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
OCTAVO_INLINE I16 load_i8_as_i16(const int8_t* p) {
  const __m128i lo = _mm_loadu_si128((const __m128i*)p), hi = _mm_loadu_si128((const __m128i*)(p + 16));
  return {_mm256_cvtepi8_epi16(lo), _mm256_cvtepi8_epi16(hi)};
}
// Lane i: sum + pair i of a . pair, exact.
OCTAVO_INLINE I32 dot_pair(I32 sum, I16 a, const int16_t* pair) {
  int32_t bits;
  memcpy(&bits, pair, 4);
  const __m256i b = _mm256_set1_epi32(bits);
  I32 total = {_mm256_add_epi32(sum.lo, _mm256_madd_epi16(a.lo, b)), _mm256_add_epi32(sum.hi, _mm256_madd_epi16(a.hi, b))};
  __asm__("" : "+x"(total.lo), "+x"(total.hi));  // in this order: GCC would regroup integer sums, and run out of registers
  return total;
}

template <int S>
OCTAVO_INLINE F32 swap_lanes(F32 a) {  // lane i: lane i ^ S of a; S is 1, 2, 4 or 8
  if constexpr (S == 8) return {a.hi, a.lo};
  if constexpr (S == 4) return {_mm256_permute2f128_ps(a.lo, a.lo, 1), _mm256_permute2f128_ps(a.hi, a.hi, 1)};
  constexpr int order = S == 2 ? 0x4e : 0xb1;
  return {_mm256_permute_ps(a.lo, order), _mm256_permute_ps(a.hi, order)};
}

// Horizontal: lanes i and i + 8, then i and i + 4, i + 2, i + 1.
OCTAVO_INLINE float reduce_add(F32 a) {
  const __m256 s8 = _mm256_add_ps(a.lo, a.hi);
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
OCTAVO_INLINE float reduce_max(F32 a) {
  const __m256 s8 = _mm256_max_ps(a.lo, a.hi);
  const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}

// Lane by lane the larger |value|, or NaN if either is: as integers, magnitudes are in order, with NaN above infinity.
OCTAVO_INLINE F32 max_magnitude(F32 a, F32 b) {
  a = abs(a);
  b = abs(b);
  return {_mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a.lo), _mm256_castps_si256(b.lo))),
          _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a.hi), _mm256_castps_si256(b.hi)))};
}
OCTAVO_INLINE float reduce_magnitude(F32 a) {
  a = abs(a);
  const __m256i m8 = _mm256_max_epi32(_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi));
  const __m128i m4 = _mm_max_epi32(_mm256_castsi256_si128(m8), _mm256_extracti128_si256(m8, 1));
  const __m128i m2 = _mm_max_epi32(m4, _mm_shuffle_epi32(m4, 0x4e));
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(m2, _mm_shuffle_epi32(m2, 0xb1))));
}

OCTAVO_INLINE void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
OCTAVO_INLINE void prefetch_l2(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T1); }

}  // namespace OCTAVO_NS
