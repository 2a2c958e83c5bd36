// The native module of one ISA level: what Python sees. All argument checks live in the bind_*.cpp files.
#include <nanobind/nanobind.h>

#include "bindings.h"

NB_MODULE(OCTAVO_MODULE, m) {
  // A forked child, or a thread that outlives the interpreter, ends with objects alive: nothing a user should read about.
  nanobind::set_leak_warnings(false);
  m.attr("isa") = OCTAVO_ISA_NAME;
  OCTAVO_NS::bind_gemm(m);
  OCTAVO_NS::bind_row_ops(m);
  OCTAVO_NS::bind_moe(m);
  OCTAVO_NS::bind_attention(m);
  OCTAVO_NS::bind_sampler(m);
  OCTAVO_NS::bind_program(m);
  OCTAVO_NS::bind_peaks(m);
}
