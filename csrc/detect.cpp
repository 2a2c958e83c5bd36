// Which ISA level this CPU and this system can run. Compiled without arch flags: it must run anywhere.
#include <nanobind/nanobind.h>

#if defined(__x86_64__)
#include <cpuid.h>

static unsigned long long extended_control_register() {
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return ((unsigned long long)high << 32) | low;
}

static const char* best() {
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return "generic";
  const bool osxsave = ecx & (1u << 27), avx = ecx & (1u << 28), fma = ecx & (1u << 12), f16c = ecx & (1u << 29);
  if (!osxsave || !avx || !fma || !f16c) return "generic";
  const unsigned long long saved = extended_control_register();  // which registers the system saves on a switch
  if ((saved & 0x6) != 0x6) return "generic";
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return "generic";
  const bool avx2 = ebx & (1u << 5), bmi2 = ebx & (1u << 8);
  if (!avx2 || !bmi2) return "generic";
  const bool f = ebx & (1u << 16), dq = ebx & (1u << 17), bw = ebx & (1u << 30), vl = ebx & (1u << 31), vnni = ecx & (1u << 11);
  return (saved & 0xe6) == 0xe6 && f && dq && bw && vl && vnni ? "avx512" : "avx2";
}
#else
static const char* best() { return "generic"; }
#endif

NB_MODULE(_detect, m) { m.def("best", &best, "Name of the best ISA level: avx512, avx2 or generic."); }
