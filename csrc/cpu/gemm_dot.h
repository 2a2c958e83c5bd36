// The integer part of a product: lines of unsigned weights, and sums of their products with int8 activations.
//
//   Line          64 bytes: 16 columns x 4 consecutive k, unsigned
//   Factor<bits>  a line made ready to be multiplied
//   IntSum<bits>  one row's 16 int32 sums over up to 8 lines; exact, so that any order gives the same bits
//
// The one thing kernels write differently per ISA level. Weights of `bits` bits are below 2^bits; activations are -127 .. 127.
#pragma once

#include "isa.h"

#if defined(OCTAVO_ISA_AVX512)
#include "gemm_dot_avx512.h"
#elif defined(OCTAVO_ISA_AVX2)
#include "gemm_dot_avx2.h"
#else
#include "gemm_dot_generic.h"
#endif
