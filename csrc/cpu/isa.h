// The ISA level this translation unit is compiled for, and the namespace that keeps levels apart in one process.
//
// Every source under cpu/ is compiled once per level, with other flags, into a module of its own. All of a module lives in
// OCTAVO_NS, so that no inline function of one level can be merged with that of another.
#pragma once

#if !defined(OCTAVO_ISA_AVX512) && !defined(OCTAVO_ISA_AVX2) && !defined(OCTAVO_ISA_GENERIC)
#error "define one of OCTAVO_ISA_AVX512, OCTAVO_ISA_AVX2, OCTAVO_ISA_GENERIC"
#endif

#if defined(OCTAVO_ISA_AVX512)
#define OCTAVO_NS octavo_avx512
#define OCTAVO_ISA_NAME "avx512"
#elif defined(OCTAVO_ISA_AVX2)
#define OCTAVO_NS octavo_avx2
#define OCTAVO_ISA_NAME "avx2"
#else
#define OCTAVO_NS octavo_generic
#define OCTAVO_ISA_NAME "generic"
#endif

#define OCTAVO_INLINE static inline __attribute__((always_inline))
#define OCTAVO_MEMBER inline __attribute__((always_inline))
