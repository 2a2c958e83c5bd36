// The kernels' enumerations by the names that Python has for them.
#pragma once

#include <cstring>

#include "checks.h"
#include "cpu/kv_cache.h"
#include "cpu/moe.h"
#include "cpu/row_ops.h"
#include "cpu/sampler.h"

namespace OCTAVO_NS {

inline CacheDtype cache_dtype(const char* name) {
  if (!strcmp(name, "float32")) return CacheDtype::kF32;
  if (!strcmp(name, "float16")) return CacheDtype::kF16;
  if (!strcmp(name, "bfloat16")) return CacheDtype::kBF16;
  if (!strcmp(name, "int8")) return CacheDtype::kI8;
  fail("dtype must be 'float32', 'float16', 'bfloat16' or 'int8', got '%.50s'", name);
}

inline Gate gate_of(const char* name) {
  if (!strcmp(name, "silu")) return Gate::kSilu;
  if (!strcmp(name, "gelu_tanh")) return Gate::kGeluTanh;
  if (!strcmp(name, "sigmoid")) return Gate::kSigmoid;
  fail("gate must be 'silu', 'gelu_tanh' or 'sigmoid', got '%.50s'", name);
}

inline Scoring scoring_of(const char* name) {
  if (!strcmp(name, "softmax")) return Scoring::kSoftmax;
  if (!strcmp(name, "sigmoid")) return Scoring::kSigmoid;
  if (!strcmp(name, "topk_softmax")) return Scoring::kTopkSoftmax;
  fail("scoring must be 'softmax', 'sigmoid' or 'topk_softmax', got '%.50s'", name);
}

inline GroupScore group_score_of(const char* name) {
  if (!strcmp(name, "max")) return GroupScore::kMax;
  if (!strcmp(name, "top2")) return GroupScore::kTop2;
  fail("group_score must be 'max' or 'top2', got '%.50s'", name);
}

inline LogprobsMode logprobs_mode(const char* name) {
  if (!strcmp(name, "raw_logprobs")) return LogprobsMode::kRawLogprobs;
  if (!strcmp(name, "raw_logits")) return LogprobsMode::kRawLogits;
  if (!strcmp(name, "processed_logprobs")) return LogprobsMode::kProcessedLogprobs;
  if (!strcmp(name, "processed_logits")) return LogprobsMode::kProcessedLogits;
  fail("mode must be raw_logprobs, raw_logits, processed_logprobs or processed_logits, got '%.50s'", name);
}

}  // namespace OCTAVO_NS
