#include "program.h"

#include <algorithm>
#include <cstring>

namespace OCTAVO_NS {

namespace {

constexpr int kPanelsPerUnit = 2;  // the kernels expand two panels at a time

struct RowRange {
  const Batch& batch;
  const int32_t* logit_rows;
  int64_t begin, end;
  float* scratch;
  int64_t num_saturated = 0;
};

void quantize(const Floats& x, int64_t width, const Acts& act, int64_t begin, int64_t end) {
  quantize_rows(x.data + begin * x.stride, act.data + begin * act.stride, end - begin, width, x.stride, act.stride);
}

// Let `compute(y, ldy, row_begin, row_end)` make rows of `width` floats, where y points to row 0, and quantise them. Rows that nobody else
// reads stay in scratch, one at a time.
template <class Compute>
void compute_and_quantize(const Floats& y, const Acts& act, int64_t width, RowRange& rows, const Compute& compute) {
  if (y.data || !act.data) {
    compute(y.data, y.stride, rows.begin, rows.end);
    if (act.data) quantize(y, width, act, rows.begin, rows.end);
    return;
  }
  for (int64_t row = rows.begin; row < rows.end; row++) {
    compute(rows.scratch, 0, row, row + 1);
    quantize_rows(rows.scratch, act.data + row * act.stride, 1, width, width, act.stride);
  }
}

void run(const EmbeddingOp& op, RowRange& rows) {
  embedding(op.table, rows.batch.token_ids, op.scale, op.y.data, op.y.stride, rows.begin, rows.end);
}
void run(const RmsNormOp& op, RowRange& rows) {
  compute_and_quantize(op.y, op.act, op.heads * op.width, rows, [&](float* y, int64_t ldy, int64_t begin, int64_t end) {
    rms_norm(op.x.data, op.weight, y, op.heads, op.width, op.eps, op.x.stride, ldy, begin, end);
  });
}
void run(const GatedMulOp& op, RowRange& rows) {
  compute_and_quantize(op.y, op.act, op.width, rows, [&](float* y, int64_t ldy, int64_t begin, int64_t end) {
    gated_mul(op.x.data, y, op.gate, op.width, op.x.stride, ldy, begin, end);
  });
}
void run(const QuantizeOp& op, RowRange& rows) { quantize(op.x, op.width, op.act, rows.begin, rows.end); }
void run(const RopeOp& op, RowRange& rows) {
  rope(op.x.data, op.table, rows.batch.positions, op.heads, op.head_dim, op.half, op.interleaved, op.x.stride, rows.begin, rows.end);
}
void run(const KvWriteOp& op, RowRange& rows) {
  const int64_t* slots = rows.batch.groups[(size_t)op.group].slot_mapping;
  rows.num_saturated += kv_write(op.cache, op.k.data, op.v.data, slots, op.k.stride, op.v.stride, rows.begin, rows.end);
}
void run(const AddOp& op, RowRange& rows) {
  add_rows(op.a.data, op.b.data, op.y.data, op.width, op.a.stride, op.b.stride, op.y.stride, rows.begin, rows.end);
}
void run(const MulOp& op, RowRange& rows) {
  mul_rows(op.a.data, op.b.data, op.y.data, op.width, op.a.stride, op.b.stride, op.y.stride, rows.begin, rows.end);
}
void run(const ScaleOp& op, RowRange& rows) {
  scale_rows(op.x.data, op.y.data, op.factor, op.width, op.x.stride, op.y.stride, rows.begin, rows.end);
}
void run(const SoftcapOp& op, RowRange& rows) {
  softcap_rows(op.x.data, op.y.data, op.cap, op.width, op.x.stride, op.y.stride, rows.begin, rows.end);
}
void run(const CopyOp& op, RowRange& rows) {
  for (int64_t row = rows.begin; row < rows.end; row++)
    memcpy(op.y.data + row * op.y.stride, op.x.data + row * op.x.stride, (size_t)op.width * sizeof(float));
}
void run(const GatherRowsOp& op, RowRange& rows) {
  gather_rows(op.x.data, rows.logit_rows, op.y.data, op.width, op.x.stride, op.y.stride, rows.begin, rows.end);
}

// Values that an op touches in a row.
int64_t row_values(const EmbeddingOp& op) { return op.table.K; }
int64_t row_values(const RmsNormOp& op) { return op.heads * op.width * 2; }
int64_t row_values(const GatedMulOp& op) { return op.width * 4; }
int64_t row_values(const RopeOp& op) { return op.heads * op.head_dim; }
int64_t row_values(const KvWriteOp& op) { return 4 * (int64_t)op.cache.num_kv_heads * op.cache.head_dim; }
int64_t row_values(const SoftcapOp& op) { return op.width * 4; }
template <class Op>
int64_t row_values(const Op& op) { return op.width; }

int64_t num_panels(const PackedMatrix& weight) { return (weight.N + kPanelColumns - 1) / kPanelColumns; }
int64_t num_units(const GemmSegment& segment) { return (num_panels(segment.weight) + kPanelsPerUnit - 1) / kPanelsPerUnit; }

}  // namespace

double row_ns(const RowStage& stage) {
  double values = 0;
  for (const RowOp& op : stage.ops) values += std::visit([](const auto& o) { return (double)row_values(o); }, op);
  return values * 0.25;
}

double row_ns(const GemmStage& stage) {
  double ns = 0;
  for (const GemmSegment& s : stage.segments) ns += (double)s.weight.N * (double)s.weight.K * (s.int8 ? 0.01 : 0.03);
  return ns;
}

double fixed_ns(const GemmStage& stage) {
  double bytes = 0;
  for (const GemmSegment& s : stage.segments) bytes += (double)num_panels(s.weight) * (double)s.weight.panel_bytes;
  return bytes / 15;
}

int64_t run_rows(const RowStage& stage, const Batch& batch, const int32_t* logit_rows, int64_t begin, int64_t end, float* scratch) {
  RowRange rows = {batch, logit_rows, begin, end, scratch};
  for (const RowOp& op : stage.ops) std::visit([&](const auto& o) { run(o, rows); }, op);
  return rows.num_saturated;
}

int64_t num_units(const GemmStage& stage) {
  int64_t units = 0;
  for (const GemmSegment& segment : stage.segments) units += num_units(segment);
  return units;
}

void run_units(const GemmStage& stage, int64_t row_begin, int64_t row_end, int64_t unit_begin, int64_t unit_end, uint8_t* scratch) {
  const int64_t num_rows = row_end - row_begin;
  int64_t first = 0;  // unit of the segment
  for (const GemmSegment& segment : stage.segments) {
    const int64_t units = num_units(segment);
    const int64_t begin = std::max(unit_begin - first, (int64_t)0), end = std::min(unit_end - first, units);
    first += units;
    if (begin >= end) continue;
    const int64_t panel_begin = begin * kPanelsPerUnit, panel_end = std::min(end * kPanelsPerUnit, num_panels(segment.weight));
    const GemmOutput out = {stage.y.data + row_begin * stage.y.stride + segment.column, stage.y.stride, segment.bias, stage.add};
    if (segment.int8) {
      const ActBlock* x = stage.act.data + row_begin * stage.act.stride;
      gemm_int8(segment.weight, x, stage.act.stride, num_rows, out, panel_begin, panel_end, scratch);
    } else {
      const float* x = stage.x.data + row_begin * stage.x.stride;
      gemm_f32(segment.weight, x, stage.x.stride, num_rows, out, panel_begin, panel_end, scratch);
    }
  }
}

AttentionArgs attention_args(const AttentionStage& stage, const Batch& batch) {
  const GroupTables& group = batch.groups[(size_t)stage.group];
  AttentionArgs args;
  args.cache = stage.cache;
  args.q = stage.q.data;
  args.out = stage.out.data;
  args.ldq = stage.q.stride;
  args.ldo = stage.out.stride;
  args.num_heads = stage.num_heads;
  args.scale = stage.scale;
  args.softcap = stage.softcap;
  args.window = stage.window;
  args.block_tables = group.block_tables;
  args.block_table_stride = group.block_table_stride;
  args.query_start_loc = batch.query_start_loc;
  args.seq_lens = batch.seq_lens;
  args.num_requests = batch.num_requests;
  return args;
}

double attention_ns(const AttentionStage& stage, const Batch& batch) {
  double pairs = 0;  // (query, key)
  for (int32_t r = 0; r < batch.num_requests; r++) {
    const int32_t queries = batch.query_start_loc[r + 1] - batch.query_start_loc[r];
    const int32_t keys = stage.window > 0 ? std::min(batch.seq_lens[r], stage.window) : batch.seq_lens[r];
    pairs += (double)queries * keys;
  }
  return pairs * stage.num_heads * stage.cache.head_dim * 0.05;
}

}  // namespace OCTAVO_NS
