// The integer part of a product: lines of unsigned weights, and sums of their products with int8 activations.
//
//   Line          64 bytes: 16 columns x 4 consecutive k, unsigned
//   Factor<bits>  a line made ready to be multiplied: kept_factor(to_kept(line)), of which an expanded panel keeps the first half done
//   IntSum<Math>  one row's 16 sums over the lines that share a scale; exact, so that any order gives the same bits
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
