// Sixteen float lanes on every ISA level: one zmm, two ymm, or a GCC vector.
//
// Kernels are written once on these types. Every operation is one rounding (fma is fused where the hardware has it), and the
// order of horizontal reductions is fixed here, so a kernel computes the same bits whatever tile or thread runs it.
//
//   F32   16 x float      I32   16 x int32      I16   32 x int16      Mask   16 x bool
#pragma once

#include <cstdint>
#include <cstring>

#include "isa.h"

#if defined(OCTAVO_ISA_AVX512)
#include "simd_avx512.h"
#elif defined(OCTAVO_ISA_AVX2)
#include "simd_avx2.h"
#else
#include "simd_generic.h"
#endif

namespace OCTAVO_NS {

constexpr int kLanes = 16;
constexpr float kLog2E = 1.44269504f;

// 2^x for x <= 126: exact 0 below -100, because a denormal p turns every later fma into microcode; NaN gives NaN.
// Minimax polynomial of degree 6 on [-0.5, 0.5]; relative error below 1.2e-7, 1.5e-7 where fma rounds twice.
OCTAVO_INLINE F32 exp2(F32 x) {
  const F32 least = set1(-100.0f);
  const F32 clamped = max(least, x);  // keeps the integer part in range, lanes below are zeroed at the end; NaN, the second, stays
  const F32 n = round_nearest(clamped);
  const F32 f = sub(clamped, n);
  F32 p = set1(1.5353350e-4f);
  p = fma(p, f, set1(1.3398875e-3f));
  p = fma(p, f, set1(9.6184374e-3f));
  p = fma(p, f, set1(5.5503325e-2f));
  p = fma(p, f, set1(2.4022648e-1f));
  p = fma(p, f, set1(6.9314720e-1f));
  p = fma(p, f, set1(1.0f));
  return select(cmp_gt(least, x), zero(), mul(p, pow2(to_i32(n))));
}

// The largest |value| of both, or NaN if any is.
OCTAVO_INLINE float largest_magnitude(F32 a, F32 b) { return reduce_magnitude(max_magnitude(a, b)); }

// e^x, through exp2; exact 0 for x below about -69.
OCTAVO_INLINE F32 exp(F32 x) { return exp2(mul(x, set1(kLog2E))); }

// 1 / (1 + e^-x); exact 0 for x below about -69; NaN gives NaN.
OCTAVO_INLINE F32 sigmoid(F32 x) {
  const F32 e = exp(sub(zero(), abs(x)));
  return div(select(cmp_ge(x, zero()), set1(1.0f), e), add(set1(1.0f), e));
}

// log(1 + e^x) = max(x, 0) + log(1 + e^-|x|), the latter as 2 atanh(s), s = e^-|x| / (2 + e^-|x|) <= 1/3, by its series: its relative error
// is below 3e-7. NaN gives NaN.
OCTAVO_INLINE F32 softplus(F32 x) {
  const F32 e = exp(sub(zero(), abs(x)));
  const F32 s = div(e, add(set1(2.0f), e)), square = mul(s, s);
  F32 p = set1(2.0f / 15);
  p = fma(p, square, set1(2.0f / 13));
  p = fma(p, square, set1(2.0f / 11));
  p = fma(p, square, set1(2.0f / 9));
  p = fma(p, square, set1(2.0f / 7));
  p = fma(p, square, set1(2.0f / 5));
  p = fma(p, square, set1(2.0f / 3));
  p = fma(p, square, set1(2.0f));
  return fma(p, s, max(zero(), x));
}

// Odd polynomial of degree 11 below 0.625, 1 - 2 / (e^2|x| + 1) above. Relative error below 3e-7, NaN gives NaN.
OCTAVO_INLINE F32 tanh(F32 x) {
  const F32 magnitude = abs(x), square = mul(x, x);
  F32 p = set1(-5.7049596e-3f);
  p = fma(p, square, set1(2.0639062e-2f));
  p = fma(p, square, set1(-5.3739707e-2f));
  p = fma(p, square, set1(1.3331441e-1f));
  p = fma(p, square, set1(-3.3333282e-1f));
  const F32 small = fma(mul(p, square), x, x);
  const F32 e = exp(mul(min(magnitude, set1(10.0f)), set1(2.0f)));
  const F32 large = sub(set1(1.0f), div(set1(2.0f), add(e, set1(1.0f))));
  const F32 signed_large = select(cmp_ge(x, zero()), large, sub(zero(), large));
  return select(cmp_ge(magnitude, set1(0.625f)), signed_large, small);
}

}  // namespace OCTAVO_NS
