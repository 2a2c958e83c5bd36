// A model lowered to stages: what the executor walks, with every address resolved at load.
//
// Consecutive ops whose rows are independent form one row stage, which runs in bands of rows; a product and an attention are stages of
// their own. All data is plain: filled by the binding, which checks every extent, and read-only while a step runs.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "act_block.h"
#include "attention.h"
#include "causal_conv.h"
#include "gated_delta.h"
#include "gemm.h"
#include "isa.h"
#include "kv_cache.h"
#include "moe.h"
#include "row_ops.h"

namespace OCTAVO_NS {

// A matrix of floats, or of activation blocks, in the arena. Null: the instruction has no such operand.
struct Floats {
  float* data = nullptr;
  int64_t stride = 0;  // floats from one row to the next
};
struct Acts {
  ActBlock* data = nullptr;
  int64_t stride = 0;  // blocks from one row to the next
};

struct EmbeddingOp { PackedMatrix table; float scale; Floats y; };
// Norm and gate may leave their result as floats, as activation blocks for the product that follows, or both.
struct RmsNormOp { Floats x; const float* weight; int64_t heads, width; float eps; Floats y; Acts act; };
struct GatedMulOp { Floats x; Gate gate; int64_t width; Floats y; Acts act; };
struct MulByGateOp { Floats x, g; Gate gate; int64_t width, gate_width; Floats y; Acts act; };
struct QuantizeOp { Floats x; int64_t width; Acts act; };
struct RopeOp { Floats x; const float* table; int64_t heads, head_dim, half; bool interleaved; };  // in place
struct KvWriteOp { Floats k, v; CacheLayer cache; int32_t group; };
struct AddOp { Floats a, b; int64_t width; Floats y; };
struct MulOp { Floats a, b; int64_t width; Floats y; };
struct ScaleOp { Floats x; float factor; int64_t width; Floats y; };
struct SoftcapOp { Floats x; float cap; int64_t width; Floats y; };
struct CopyOp { Floats x; int64_t width; Floats y; };
struct GatherRowsOp { Floats x; int64_t width; Floats y; };
struct RouteOp { Floats logits; Routing routing; const float* choice_bias; Floats experts, weights; };
struct MoeCombineOp { Floats x, weights, add; int64_t top_k, width; Floats y; const MoePlan* plan; };

using RowOp = std::variant<EmbeddingOp, RmsNormOp, GatedMulOp, MulByGateOp, QuantizeOp, RopeOp, KvWriteOp, AddOp, MulOp, ScaleOp,
                           SoftcapOp, CopyOp, GatherRowsOp, RouteOp, MoeCombineOp>;

struct RowStage {
  std::vector<RowOp> ops;
  int64_t scratch_floats = 0;  // of one row: one that is quantised without being stored, or a router's scores
  int64_t rows_per_row = 1;    // of the step: sorted rows of a mixture of experts are top_k for each
};

struct GemmSegment {
  PackedMatrix weight;
  int64_t column;     // of the output, where this matrix begins
  const float* bias;  // [N] or null
  bool int8;          // reads activation blocks; else floats
};

struct GemmStage {
  Floats x;
  Acts act;
  Floats y;
  bool add;
  std::vector<GemmSegment> segments;
};

// A gate and what it multiplies, as parts of matrices: y = gate(x * gate part) * (x * up part).
struct GatedPart {
  PackedMatrix weight;
  int64_t first_panel;
  const float* bias;  // [weight.N] or null
  bool int8;
};
struct GatedGemmStage {
  Floats x;
  Acts act;
  Gate gate;
  int64_t width;
  GatedPart gate_part, up_part;
  Floats y;  // as a gate's results: floats, activation blocks, or both
  Acts y_act;
};

struct AttentionStage {
  Floats q, out;
  CacheLayer cache;
  int32_t group, num_heads, window;
  float scale, softcap;
};

struct CausalConvStage {
  Floats x;
  const float* weight;
  StateLayer layer;
  int32_t group;
  Floats y;
};

struct GatedDeltaStage {
  Floats qkv, b, a;
  const float *decay, *dt_bias;
  bool tiled_heads;
  StateLayer layer;
  int32_t group;
  Floats out;
};

// Makes the plan of a step's rows, and copies each row to the places of its experts.
struct MoeSortStage {
  Floats experts;
  int64_t top_k, num_experts;
  Floats x, sorted_x;    // either floats
  Acts act, sorted_act;  // or activation blocks
  int64_t row_bytes;
  MoePlan* plan;
};

// The product of each expert with its sorted rows.
struct MoeGemmStage {
  std::vector<GemmStage> experts;
  MoePlan* plan;
};

using Stage =
    std::variant<RowStage, GemmStage, GatedGemmStage, AttentionStage, CausalConvStage, GatedDeltaStage, MoeSortStage, MoeGemmStage>;

// What is made of chosen rows of the body's result, at most kHeadSlice at a time.
struct EntryPoint {
  std::vector<Stage> stages;  // the last writes `result`
  Floats result;
  int64_t width = 0;  // of a row of it
};

struct Program {
  std::vector<Stage> body;  // rows are tokens
  EntryPoint head;          // logits
  EntryPoint pool;          // final hidden states; a program may have none
};

constexpr int32_t kHeadSlice = 64;

// One cache group's arrays of a step. A group of recurrent states has tables of one entry, the slot of its state.
struct GroupTables {
  const int32_t* block_tables;  // [R, block_table_stride]
  int64_t block_table_stride;
  const int64_t* slot_mapping;  // [T] block * block_size + offset of each row's keys and values; none for states
};

// The arrays of a step, checked.
struct Batch {
  int32_t num_tokens = 0, num_requests = 0;
  const int32_t* token_ids = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* query_start_loc = nullptr;
  const int32_t* seq_lens = nullptr;
  std::vector<GroupTables> groups;
  const StateSave* saves = nullptr;
  int64_t num_saves = 0;
};

// Estimated nanoseconds of one core: decides how many chunks a stage is worth, never what is computed.
double row_ns(const RowStage& stage);
double row_ns(const GemmStage& stage);
double row_ns(const GatedGemmStage& stage);
double fixed_ns(const GemmStage& stage);  // reading the weights
double fixed_ns(const GatedGemmStage& stage);

// Run the ops of a row stage for rows [begin, end). `logit_rows` are those of the slice of an entry point. Returns how many values
// saturated in the cache's dtype.
int64_t run_rows(const RowStage& stage, const Batch& batch, const int32_t* logit_rows, int64_t begin, int64_t end, float* scratch);

// Units of a product are pairs of panels, over all segments in order; of a gated one, pairs of panels of both parts.
int64_t num_units(const GemmStage& stage);
int64_t num_units(const GatedGemmStage& stage);
void run_units(const GemmStage& stage, int64_t row_begin, int64_t row_end, int64_t unit_begin, int64_t unit_end, uint8_t* scratch);
void run_units(const GatedGemmStage& stage, int64_t row_begin, int64_t row_end, int64_t unit_begin, int64_t unit_end, uint8_t* scratch);
int64_t unit_scratch_bytes(const GemmStage& stage);  // of one thread
int64_t unit_scratch_bytes(const GatedGemmStage& stage);

void sort_rows(const MoeSortStage& stage, int64_t num_rows);
void copy_sorted_rows(const MoeSortStage& stage, int64_t sorted_begin, int64_t sorted_end);

// Estimate the products of all active experts, in the plan; return the sum in nanoseconds.
double plan_products(const MoeGemmStage& stage);
int64_t num_units(const MoeGemmStage& stage);
// Part `index` of `num_parts` parts of the active experts' units that take about the same time.
void run_part(const MoeGemmStage& stage, int64_t index, int64_t num_parts, uint8_t* scratch);

AttentionArgs attention_args(const AttentionStage& stage, const Batch& batch);
double attention_ns(const AttentionStage& stage, const Batch& batch);

CausalConvArgs causal_conv_args(const CausalConvStage& stage, const Batch& batch);
double causal_conv_ns(const CausalConvStage& stage, const Batch& batch);
GatedDeltaArgs gated_delta_args(const GatedDeltaStage& stage, const Batch& batch);
double gated_delta_ns(const GatedDeltaStage& stage, const Batch& batch);

}  // namespace OCTAVO_NS
