#include "program.h"

#include <algorithm>
#include <cstring>

namespace OCTAVO_NS {

namespace {

constexpr int kPanelsPerUnit = 2;  // that AVX-512 expands together, and that an activation block is made of
constexpr double kBytesPerNs = 15;  // that one core reads
constexpr int64_t kUnitColumns = kPanelsPerUnit * kPanelColumns;
constexpr int64_t kGatedRows = 256;  // of one unit: a gated product's tile stays in cache until it is quantised
static_assert(kUnitColumns == kGroup, "a unit of a gated product makes whole activation blocks");

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
void run(const MulByGateOp& op, RowRange& rows) {
  compute_and_quantize(op.y, op.act, op.width, rows, [&](float* y, int64_t ldy, int64_t begin, int64_t end) {
    mul_by_gate(op.x.data, op.g.data, y, op.gate, op.width, op.gate_width, op.x.stride, op.g.stride, ldy, begin, end);
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

void run(const RouteOp& op, RowRange& rows) {
  for (int64_t row = rows.begin; row < rows.end; row++) {
    route_row(op.routing, op.logits.data + row * op.logits.stride, op.choice_bias, op.experts.data + row * op.experts.stride,
              op.weights.data + row * op.weights.stride, rows.scratch);
  }
}
void run(const MoeCombineOp& op, RowRange& rows) {
  moe_combine(op.x.data, op.weights.data, op.add.data, op.y.data, *op.plan, op.top_k, op.width, op.x.stride, op.weights.stride,
              op.add.stride, op.y.stride, rows.begin, rows.end);
}

// Values that an op touches in a row.
int64_t row_values(const EmbeddingOp& op) { return op.table.K; }
int64_t row_values(const RmsNormOp& op) { return op.heads * op.width * 2; }
int64_t row_values(const GatedMulOp& op) { return op.width * 4; }
int64_t row_values(const RopeOp& op) { return op.heads * op.head_dim; }
int64_t row_values(const KvWriteOp& op) { return 4 * (int64_t)op.cache.num_kv_heads * op.cache.head_dim; }
int64_t row_values(const SoftcapOp& op) { return op.width * 4; }
int64_t row_values(const MulByGateOp& op) { return op.width * 4; }
int64_t row_values(const RouteOp& op) { return (int64_t)op.routing.num_experts * (op.routing.top_k + 8) * 2; }
int64_t row_values(const MoeCombineOp& op) { return op.width * op.top_k; }
template <class Op>
int64_t row_values(const Op& op) { return op.width; }

int64_t num_units(const GemmSegment& segment) { return (num_panels(segment.weight.N) + kPanelsPerUnit - 1) / kPanelsPerUnit; }

double product_row_ns(const PackedMatrix& weight, int64_t columns, bool int8) {
  return (double)columns * (double)weight.K * (int8 ? 0.01 : 0.03);
}

// Rows [row_begin, row_begin + num_rows) of a product of floats or activation blocks.
void multiply(const PackedMatrix& weight, bool int8, const Floats& x, const Acts& act, int64_t row_begin, int64_t num_rows,
              const GemmOutput& out, int64_t panel_begin, int64_t panel_end, uint8_t* scratch) {
  if (int8) {
    gemm_int8(weight, act.data + row_begin * act.stride, act.stride, num_rows, out, panel_begin, panel_end, scratch);
  } else {
    gemm_f32(weight, x.data + row_begin * x.stride, x.stride, num_rows, out, panel_begin, panel_end, scratch);
  }
}

// Columns [column, column + columns) of a part, which begin and end where units do, to `out`.
void multiply_part(const GatedGemmStage& stage, const GatedPart& part, int64_t column, int64_t columns, int64_t row_begin,
                   int64_t num_rows, float* out, int64_t ldo, uint8_t* scratch) {
  const int64_t begin = part.first_panel + column / kPanelColumns, end = begin + num_panels(columns);
  multiply(part.weight, part.int8, stage.x, stage.act, row_begin, num_rows, {out, ldo, part.bias, false, begin}, begin, end, scratch);
}

int64_t part_scratch_bytes(const GatedPart& part) { return gemm_scratch_bytes(part.weight.format, part.weight.K, part.int8); }
int64_t product_scratch_bytes(const GatedGemmStage& stage) {
  return std::max(part_scratch_bytes(stage.gate_part), part_scratch_bytes(stage.up_part));
}

}  // namespace

double row_ns(const RowStage& stage) {
  double values = 0;
  for (const RowOp& op : stage.ops) values += std::visit([](const auto& o) { return (double)row_values(o); }, op);
  return values * 0.25 * (double)stage.rows_per_row;
}

double row_ns(const GemmStage& stage) {
  double ns = 0;
  for (const GemmSegment& s : stage.segments) ns += product_row_ns(s.weight, s.weight.N, s.int8);
  return ns;
}

double row_ns(const GatedGemmStage& stage) {
  return product_row_ns(stage.gate_part.weight, stage.width, stage.gate_part.int8) +
         product_row_ns(stage.up_part.weight, stage.width, stage.up_part.int8) + (double)stage.width;
}

double fixed_ns(const GemmStage& stage) {
  double bytes = 0;
  for (const GemmSegment& s : stage.segments) bytes += (double)num_panels(s.weight.N) * (double)s.weight.panel_bytes;
  return bytes / kBytesPerNs;
}

double fixed_ns(const GatedGemmStage& stage) {
  const int64_t panel_bytes = stage.gate_part.weight.panel_bytes + stage.up_part.weight.panel_bytes;
  return (double)(stage.width / kPanelColumns * panel_bytes) / kBytesPerNs;
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
    const int64_t panel_begin = begin * kPanelsPerUnit, panel_end = std::min(end * kPanelsPerUnit, num_panels(segment.weight.N));
    const GemmOutput out = {stage.y.data + row_begin * stage.y.stride + segment.column, stage.y.stride, segment.bias, stage.add};
    multiply(segment.weight, segment.int8, stage.x, stage.act, row_begin, num_rows, out, panel_begin, panel_end, scratch);
  }
}

int64_t unit_scratch_bytes(const GemmStage& stage) {
  int64_t bytes = 0;
  for (const GemmSegment& s : stage.segments) bytes = std::max(bytes, gemm_scratch_bytes(s.weight.format, s.weight.K, s.int8));
  return bytes;
}

int64_t num_units(const GatedGemmStage& stage) { return (stage.width + kUnitColumns - 1) / kUnitColumns; }

void run_units(const GatedGemmStage& stage, int64_t row_begin, int64_t row_end, int64_t unit_begin, int64_t unit_end, uint8_t* scratch) {
  float* tile = (float*)(scratch + product_scratch_bytes(stage));  // gate columns, up columns
  for (int64_t first = row_begin; first < row_end; first += kGatedRows) {
    const int64_t rows = std::min(kGatedRows, row_end - first);
    const int64_t at_once = kGatedRows / rows;  // units: the fewer rows, the longer the streams of weights
    for (int64_t unit = unit_begin; unit < unit_end; unit += at_once) {
      const int64_t column = unit * kUnitColumns;
      const int64_t columns = std::min(std::min(unit_end, unit + at_once) * kUnitColumns, stage.width) - column;
      multiply_part(stage, stage.gate_part, column, columns, first, rows, tile, 2 * columns, scratch);
      multiply_part(stage, stage.up_part, column, columns, first, rows, tile + columns, 2 * columns, scratch);
      const bool is_stored = stage.y.data != nullptr;
      float* y = is_stored ? stage.y.data + first * stage.y.stride + column : tile;
      const int64_t ldy = is_stored ? stage.y.stride : 2 * columns;
      gated_mul(tile, y, stage.gate, columns, 2 * columns, ldy, 0, rows);
      if (stage.y_act.data) quantize_rows(y, stage.y_act.data + first * stage.y_act.stride + unit, rows, columns, ldy, stage.y_act.stride);
    }
  }
}

int64_t unit_scratch_bytes(const GatedGemmStage& stage) {
  return product_scratch_bytes(stage) + kGatedRows * 2 * kUnitColumns * (int64_t)sizeof(float);
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
