// Gated DeltaNet: the recurrence of a request's rows, one arithmetic for one row and for many.
//
// The slot holds S at the last multiple of 16 tokens, and the rows since. Row t of this open chunk, with D_t,j the product of the decays
// e^g of the rows after j up to t, and D_t that of all rows of the chunk up to t:
//   u_t = beta_t (v_t - D_t S^T k_t - sum_{j < t} D_t,j (k_j . k_t) u_j)
//   o_t = D_t S^T q_t + sum_{j <= t} D_t,j (k_j . q_t) u_j
// and at a multiple of 16: S <- D_15 S + sum_j D_15,j k_j u_j^T, in order of j. Each element is one fixed sequence of float operations:
// sums run over key dims and over j in order, vectors hold value dims, or the sixteen j.
// Source: Yang et al. 2024, arXiv:2412.06464; the chunked form of its section 3.3, written row by row.
#pragma once

#include <cstdint>

#include "isa.h"
#include "state_cache.h"

namespace OCTAVO_NS {

struct GatedDeltaArgs {
  StateLayer layer;
  StateRequests requests;
  const float* qkv;  // [T, HK * key_dim | HK * key_dim | HV * value_dim]  row stride ld_qkv
  const float* b;    // [T, HV]  row stride ldb; beta = sigmoid(b)
  const float* a;    // [T, HV]  row stride lda; g = decay * softplus(a + dt_bias)
  const float* decay;    // [HV]
  const float* dt_bias;  // [HV]
  float* out;            // [T, HV * value_dim]  row stride ldo
  int64_t ld_qkv, ldb, lda, ldo;
  bool tiled_heads;  // value head h reads key head h % HK, else h / (HV / HK)
};

// Units that any thread may compute in any order: a request's rows for one key head and its value heads.
int64_t gated_delta_units(const GatedDeltaArgs& args);
int64_t gated_delta_scratch_bytes(const StateLayer& layer);  // of a thread
void gated_delta_unit(const GatedDeltaArgs& args, int64_t unit, uint8_t* scratch);

}  // namespace OCTAVO_NS
