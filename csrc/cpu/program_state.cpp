// The stages of recurrent layers: from a stage and a step's arrays to what the kernels read.
#include "program.h"

#include <cstddef>

namespace OCTAVO_NS {

namespace {

StateRequests state_requests(const Batch& batch, int32_t group) {
  const GroupTables& tables = batch.groups[(size_t)group];
  StateRequests requests;
  requests.slots = tables.block_tables;
  requests.slot_stride = tables.block_table_stride;
  requests.query_start_loc = batch.query_start_loc;
  requests.seq_lens = batch.seq_lens;
  requests.saves = batch.saves;
  requests.num_saves = batch.num_saves;
  requests.num_requests = batch.num_requests;
  requests.group = group;
  return requests;
}

}  // namespace

CausalConvArgs causal_conv_args(const CausalConvStage& stage, const Batch& batch) {
  CausalConvArgs args;
  args.layer = stage.layer;
  args.requests = state_requests(batch, stage.group);
  args.x = stage.x.data;
  args.weight = stage.weight;
  args.out = stage.y.data;
  args.ldx = stage.x.stride;
  args.ldo = stage.y.stride;
  return args;
}

double causal_conv_ns(const CausalConvStage& stage, const Batch& batch) {
  return (double)stage.layer.conv_channels * ((double)batch.num_tokens + 2.0 * batch.num_requests) * 0.4;
}

GatedDeltaArgs gated_delta_args(const GatedDeltaStage& stage, const Batch& batch) {
  GatedDeltaArgs args;
  args.layer = stage.layer;
  args.requests = state_requests(batch, stage.group);
  args.qkv = stage.qkv.data;
  args.b = stage.b.data;
  args.a = stage.a.data;
  args.decay = stage.decay;
  args.dt_bias = stage.dt_bias;
  args.out = stage.out.data;
  args.ld_qkv = stage.qkv.stride;
  args.ldb = stage.b.stride;
  args.lda = stage.a.stride;
  args.ldo = stage.out.stride;
  args.tiled_heads = stage.tiled_heads;
  return args;
}

double gated_delta_ns(const GatedDeltaStage& stage, const Batch& batch) {
  const double state_values = (double)stage.layer.num_value_heads * (double)stage.layer.head_floats();
  return state_values * (0.25 * batch.num_requests + 0.06 * batch.num_tokens);  // reading it, and multiplying with it
}

}  // namespace OCTAVO_NS
