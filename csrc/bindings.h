// The parts of the native module; each binds one family of kernels and checks every argument that comes from Python.
#pragma once

#include <nanobind/nanobind.h>

#include "cpu/isa.h"

namespace OCTAVO_NS {

void bind_gemm(nanobind::module_& m);
void bind_row_ops(nanobind::module_& m);
void bind_moe(nanobind::module_& m);
void bind_attention(nanobind::module_& m);
void bind_sampler(nanobind::module_& m);
void bind_program(nanobind::module_& m);
void bind_peaks(nanobind::module_& m);

}  // namespace OCTAVO_NS
