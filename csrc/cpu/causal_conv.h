// Depthwise causal convolution with silu, over the rows of each request and the last inputs before them.
//
// An output is one fixed sequence of fma over the taps, whatever part of a request a step holds.
#pragma once

#include <cstdint>

#include "isa.h"
#include "state_cache.h"

namespace OCTAVO_NS {

struct CausalConvArgs {
  StateLayer layer;  // its conv_channels is C
  StateRequests requests;
  const float* x;       // [T, C]  row stride ldx
  const float* weight;  // [conv_width, C]
  float* out;           // [T, C]  row stride ldo; not x
  int64_t ldx, ldo;
};

// Units that any thread may compute in any order; each brings its part of the slots up to date.
int64_t causal_conv_units(const CausalConvArgs& args);
void causal_conv_unit(const CausalConvArgs& args, int64_t unit);

}  // namespace OCTAVO_NS
