// The floating-point mode that kernels run in: the same in every thread, and given back to Python as it was.
#pragma once

#include <cstdint>

#include "isa.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace OCTAVO_NS {

// Round to nearest, no traps, denormals read and written as zero, for as long as the object lives. Kernels flush their own tiny
// values where results depend on it; here it keeps a stray denormal from turning an fma into microcode.
class FloatMode {
 public:
  FloatMode() : saved_(read()) { write(kKernelMode); }
  ~FloatMode() { write(saved_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kKernelMode = 0x9fc0;  // MXCSR: all exceptions masked, FTZ and DAZ
  static uint64_t read() { return _mm_getcsr(); }
  static void write(uint64_t mode) { _mm_setcsr((unsigned)mode); }
#elif defined(__aarch64__)
  static constexpr uint64_t kKernelMode = 1u << 24;  // FPCR: flush to zero
  static uint64_t read() {
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void write(uint64_t mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
#else
  static constexpr uint64_t kKernelMode = 0;
  static uint64_t read() { return 0; }
  static void write(uint64_t) {}
#endif

  uint64_t saved_;
};

}  // namespace OCTAVO_NS
