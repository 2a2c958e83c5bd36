// F32, I32 and Mask for AVX-512 (F, BW, VL, DQ, VNNI): one zmm register. See simd.h.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "isa.h"

namespace OCTAVO_NS {

struct F32 { __m512 v; };
struct I32 { __m512i v; };
struct I16 { __m512i v; };
struct Mask { __mmask16 v; };

// Whether fma() rounds once.
constexpr bool kFusedMultiplyAdd = true;

OCTAVO_INLINE F32 zero() { return {_mm512_setzero_ps()}; }
OCTAVO_INLINE F32 set1(float x) { return {_mm512_set1_ps(x)}; }
OCTAVO_INLINE F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
OCTAVO_INLINE void store(float* p, F32 a) { _mm512_storeu_ps(p, a.v); }
OCTAVO_INLINE F32 load_first(const float* p, int n) { return {_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p)}; }
OCTAVO_INLINE void store_first(float* p, F32 a, int n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a.v); }

OCTAVO_INLINE F32 add(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
OCTAVO_INLINE F32 sub(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
OCTAVO_INLINE F32 mul(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
OCTAVO_INLINE F32 div(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
OCTAVO_INLINE F32 sqrt(F32 a) { return {_mm512_sqrt_ps(a.v)}; }
OCTAVO_INLINE F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
OCTAVO_INLINE F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
OCTAVO_INLINE F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }  // a * b + c
OCTAVO_INLINE F32 abs(F32 a) { return {_mm512_abs_ps(a.v)}; }
OCTAVO_INLINE F32 round_nearest(F32 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }

OCTAVO_INLINE Mask mask_first(int n) { return {(__mmask16)(n >= 16 ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1)}; }
OCTAVO_INLINE Mask mask_and_not(Mask a, Mask b) { return {(__mmask16)(a.v & ~b.v)}; }  // in a and not in b
OCTAVO_INLINE Mask cmp_ge(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
OCTAVO_INLINE Mask cmp_gt(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
OCTAVO_INLINE F32 select(Mask m, F32 yes, F32 no) { return {_mm512_mask_mov_ps(no.v, m.v, yes.v)}; }
OCTAVO_INLINE uint32_t to_bits(Mask m) { return m.v; }  // bit i: lane i
OCTAVO_INLINE Mask from_bits(uint32_t bits) { return {(__mmask16)bits}; }
OCTAVO_INLINE float first_lane(F32 a) { return _mm512_cvtss_f32(a.v); }

OCTAVO_INLINE void store_i32(int32_t* p, I32 a) { _mm512_storeu_si512(p, a.v); }
OCTAVO_INLINE I32 to_i32(F32 a) { return {_mm512_cvtps_epi32(a.v)}; }  // rounds to nearest even
OCTAVO_INLINE F32 to_f32(I32 a) { return {_mm512_cvtepi32_ps(a.v)}; }
OCTAVO_INLINE F32 pow2(I32 n) {  // 2^n, n in -126 .. 127
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n.v, _mm512_set1_epi32(127)), 23))};
}

OCTAVO_INLINE F32 load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
OCTAVO_INLINE F32 load_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
OCTAVO_INLINE void store_f16(uint16_t* p, F32 a) {  // round to nearest even; the caller saturates
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
OCTAVO_INLINE void store_bf16(uint16_t* p, F32 a) {  // round to nearest even; NaN stays NaN
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16)));
}
OCTAVO_INLINE F32 load_u8(const uint8_t* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)))}; }
OCTAVO_INLINE F32 load_low_nibbles(const uint8_t* p) {
  const __m128i b = _mm_and_si128(_mm_loadu_si128((const __m128i*)p), _mm_set1_epi8(15));
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(b))};
}
OCTAVO_INLINE F32 load_high_nibbles(const uint8_t* p) {
  const __m128i b = _mm_and_si128(_mm_srli_epi16(_mm_loadu_si128((const __m128i*)p), 4), _mm_set1_epi8(15));
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(b))};
}
OCTAVO_INLINE F32 load_i8(const int8_t* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))}; }

OCTAVO_INLINE void store_i8(int8_t* p, F32 a) {  // values are integers -128 .. 127
  _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}

OCTAVO_INLINE void store_i16(int16_t* p, F32 a) {  // rounds to nearest even; values are in range
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(a.v)));
}
OCTAVO_INLINE I32 zero_i32() { return {_mm512_setzero_si512()}; }
OCTAVO_INLINE I16 load_i8_as_i16(const int8_t* p) { return {_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p))}; }
// Lane i: sum + pair i of a . pair, exact.
OCTAVO_INLINE I32 dot_pair(I32 sum, I16 a, const int16_t* pair) {
  int32_t bits;
  memcpy(&bits, pair, 4);
  return {_mm512_dpwssd_epi32(sum.v, a.v, _mm512_set1_epi32(bits))};
}

template <int S>
OCTAVO_INLINE F32 swap_lanes(F32 a) {  // lane i: lane i ^ S of a; S is 1, 2, 4 or 8
  constexpr int order = S == 2 || S == 8 ? 0x4e : 0xb1;
  if constexpr (S >= 4) return {_mm512_shuffle_f32x4(a.v, a.v, order)};
  return {_mm512_permute_ps(a.v, order)};
}

// Horizontal: lanes i and i + 8, then i and i + 4, i + 2, i + 1.
OCTAVO_INLINE float reduce_add(F32 a) {
  const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
OCTAVO_INLINE float reduce_max(F32 a) { return _mm512_reduce_max_ps(a.v); }

// Lane by lane the larger |value|, or NaN if either is: as integers, magnitudes are in order, with NaN above infinity.
OCTAVO_INLINE F32 max_magnitude(F32 a, F32 b) {
  return {_mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(abs(a).v), _mm512_castps_si512(abs(b).v)))};
}
OCTAVO_INLINE float reduce_magnitude(F32 a) {
  const int32_t bits = _mm512_reduce_max_epi32(_mm512_castps_si512(abs(a).v));
  float largest;
  memcpy(&largest, &bits, 4);
  return largest;
}

OCTAVO_INLINE void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
OCTAVO_INLINE void prefetch_l2(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T1); }

}  // namespace OCTAVO_NS
