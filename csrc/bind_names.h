// The kernels' enumerations by the names that Python has for them.
#pragma once

#include <cstring>

#include "checks.h"
#include "cpu/kv_cache.h"
#include "cpu/row_ops.h"
#include "cpu/sampler.h"

namespace OCTAVO_NS {

inline CacheDtype cache_dtype(const char* name) {
  if (!strcmp(name, "float32")) return CacheDtype::kF32;
  if (!strcmp(name, "float16")) return CacheDtype::kF16;
  if (!strcmp(name, "bfloat16")) return CacheDtype::kBF16;
  fail("dtype must be 'float32', 'float16' or 'bfloat16', got '%.50s'", name);
}

inline Gate gate_of(const char* name) {
  if (!strcmp(name, "silu")) return Gate::kSilu;
  if (!strcmp(name, "gelu_tanh")) return Gate::kGeluTanh;
  fail("gate must be 'silu' or 'gelu_tanh', got '%.50s'", name);
}

inline LogprobsMode logprobs_mode(const char* name) {
  if (!strcmp(name, "raw_logprobs")) return LogprobsMode::kRawLogprobs;
  if (!strcmp(name, "raw_logits")) return LogprobsMode::kRawLogits;
  if (!strcmp(name, "processed_logprobs")) return LogprobsMode::kProcessedLogprobs;
  if (!strcmp(name, "processed_logits")) return LogprobsMode::kProcessedLogits;
  fail("mode must be raw_logprobs, raw_logits, processed_logprobs or processed_logits, got '%.50s'", name);
}

}  // namespace OCTAVO_NS
