#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind_names.h"
#include "bindings.h"
#include "native_program.h"

namespace OCTAVO_NS {

namespace {

using namespace nb::literals;

using Int32s = Array<const int32_t, 1>;

template <class View>
auto data_or_null(const std::optional<View>& array) { return array ? array->data() : nullptr; }

// No array is converted: what changes in a copy's original would not be seen.
void set_tables(NativeProgram& program, Table token_ids, const nb::list& blocks) {
  std::vector<Table> tables(nb::len(blocks));
  for (size_t g = 0; g < tables.size(); g++) {
    if (!nb::try_cast(blocks[g], tables[g], false)) throw nb::type_error("a block table must be a contiguous array [seats, blocks] of int32");
  }
  program.set_tables(std::move(token_ids), std::move(tables));
}

std::optional<double> run(NativeProgram& program, const Int32s& seats, const Int32s& num_computed_tokens, const Int32s& num_scheduled_tokens,
                          const std::optional<Table>& state_saves, bool check_signals) {
  static_assert(sizeof(StateSave) == 4 * sizeof(int32_t), "a row of state_saves");
  const int64_t R = (int64_t)seats.size();
  StepPlan plan = {seats.data(), data_of_length("num_computed_tokens", num_computed_tokens, R),
                   data_of_length("num_scheduled_tokens", num_scheduled_tokens, R), R, nullptr, 0};
  if (state_saves) {
    check_equal("the columns of state_saves", (int64_t)state_saves->shape(1), 4);
    plan.saves = (const StateSave*)state_saves->data();
    plan.num_saves = (int64_t)state_saves->shape(0);
  }
  return program.run(plan, check_signals);
}

// As Python's SampleBatch and SampleOutput: the last four arrays are written.
std::optional<double> sample(NativeProgram& program, nb::handle choices, nb::handle edits, const std::optional<Array<const uint32_t, 2>>& allowed,
                             const std::optional<Int32s>& score_ids, nb::handle results, const std::optional<Array<int32_t, 2>>& top_ids,
                             const std::optional<Array<float, 2>>& top_logprobs, const std::optional<Array<float, 1>>& scores,
                             const char* mode, bool check_signals) {
  const Records<const SampleChoice> rows("choices", choices);
  std::optional<Records<const LogitEdit>> changes;
  if (!edits.is_none()) changes.emplace("edits", edits);
  const Records<SampleResult> out("results", results);
  const int64_t N = rows.size(), k = top_ids ? (int64_t)top_ids->shape(1) : 0, words = (program.vocab_size() + 31) / 32;
  check_equal("the number of results", out.size(), N);
  if (allowed) check_equal("the words of a mask", (int64_t)allowed->shape(1), words);
  if (top_ids || top_logprobs) {
    if (!top_ids || !top_logprobs) fail("top_ids and top_logprobs must be given together");
    check_equal("the rows of top_ids", (int64_t)top_ids->shape(0), N);
    check_equal("the rows of top_logprobs", (int64_t)top_logprobs->shape(0), N);
    check_equal("the columns of top_logprobs", (int64_t)top_logprobs->shape(1), k);
  }
  const int64_t S = score_ids ? (int64_t)score_ids->size() : 0;
  check_equal("the number of scores", scores ? (int64_t)scores->size() : 0, S);
  const SampleArrays arrays = {rows.data(), changes ? changes->data() : nullptr, data_or_null(score_ids), data_or_null(allowed), words,
                               logprobs_mode(mode), out.data(), data_or_null(top_ids), data_or_null(top_logprobs), k, data_or_null(scores)};
  const SampleLimits limits = {program.vocab_size(), changes ? changes->size() : 0, allowed ? (int64_t)allowed->shape(0) : 0, S};
  return program.sample(arrays, N, limits, check_signals);
}

// Counts in stages that depend on each other: chunk c of stage s adds 1 to its cell if the stage before left s in all cells.
class CountingWalk final : public StageWalk {
 public:
  CountingWalk(int32_t num_stages, int32_t num_chunks) : num_stages_(num_stages), cells_((size_t)num_chunks, 0) {}
  int32_t next_stage(int32_t) override {
    for (const int64_t cell : cells_) total_ += cell == stage_;
    return stage_++ < num_stages_ ? (int32_t)cells_.size() : 0;
  }
  void run_chunk(int32_t chunk, int32_t) override { cells_[(size_t)chunk]++; }
  void poll() override {}
  int64_t total() const { return total_; }

 private:
  const int64_t num_stages_;
  int64_t stage_ = 0, total_ = 0;
  std::vector<int64_t> cells_;
};

int64_t count_stages(ThreadPool& pool, int32_t num_stages, int32_t num_chunks) {
  check_range("num_stages", num_stages, 0, INT32_MAX);
  check_range("num_chunks", num_chunks, 1, ThreadPool::kMaxChunks);
  CountingWalk walk(num_stages, num_chunks);
  nb::gil_scoped_release release;
  pool.run(walk);
  return walk.total();
}

void bind_pool(nb::module_& m) {
  nb::class_<ThreadPool>(m, "ThreadPool", "The worker threads alone; a NativeProgram has its own.")
      .def("__init__",
           [](ThreadPool* self, int32_t num_threads) {
             check_range("num_threads", num_threads, 1, ThreadPool::kMaxThreads);
             new (self) ThreadPool(num_threads);
           },
           "num_threads"_a)
      .def("count_stages", &count_stages, "num_stages"_a, "num_chunks"_a,
           "Run empty stages; return how many (stage, chunk) pairs found the stage before complete: (num_stages + 1) * num_chunks.");
}

void bind_load_moe(nb::class_<NativeProgram>& c) {
  c.def("route",
           [](NativeProgram& self, Place logits, std::optional<Vector> choice_bias, int32_t num_experts, int32_t top_k, const char* scoring,
              bool renormalize, float scale, int32_t num_groups, int32_t top_groups, const char* group_score, Place experts, Place weights) {
             const Routing routing = {num_experts, top_k,      scoring_of(scoring), renormalize, scale,
                                      num_groups,  top_groups, group_score_of(group_score)};
             self.route(logits, choice_bias, routing, experts, weights);
           },
           "logits"_a, "choice_bias"_a.noconvert().none(), "num_experts"_a, "top_k"_a, "scoring"_a, "renormalize"_a, "scale"_a,
           "num_groups"_a, "top_groups"_a, "group_score"_a, "experts"_a, "weights"_a)
      .def("moe_sort", &NativeProgram::moe_sort, "experts"_a, "top_k"_a, "num_experts"_a, "x"_a.none(), "act"_a.none(), "width"_a,
           "sorted_rows"_a)
      .def("moe_gemm", &NativeProgram::moe_gemm, "x"_a.none(), "act"_a.none(), "y"_a, "experts"_a)
      .def("moe_gate", &NativeProgram::moe_gate, "x"_a, "gate"_a, "width"_a, "y"_a.none(), "act"_a.none())
      .def("moe_combine", &NativeProgram::moe_combine, "x"_a, "weights"_a, "width"_a, "add"_a.none(), "y"_a);
}

void bind_load(nb::class_<NativeProgram>& c) {
  c.def("add_group", &NativeProgram::add_group, "pool"_a.noconvert(), "num_layers"_a, "num_kv_heads"_a, "head_dim"_a, "block_size"_a,
        "dtype"_a)
      .def("add_state_group", &NativeProgram::add_state_group, "pool"_a.noconvert(), "num_layers"_a, "num_key_heads"_a,
           "num_value_heads"_a, "key_dim"_a, "value_dim"_a, "conv_width"_a, "conv_channels"_a, "keeps_border"_a)
      .def("start_rows", &NativeProgram::start_rows)
      .def("start_head", &NativeProgram::start_head)
      .def("start_pool", &NativeProgram::start_pool)
      .def("embedding", &NativeProgram::embedding, "table"_a, "scale"_a, "y"_a)
      .def("rms_norm", &NativeProgram::rms_norm, "x"_a, "weight"_a.noconvert(), "heads"_a, "eps"_a, "y"_a.none(), "act"_a.none())
      .def("gated_mul", &NativeProgram::gated_mul, "x"_a, "gate"_a, "width"_a, "y"_a.none(), "act"_a.none())
      .def("mul_by_gate", &NativeProgram::mul_by_gate, "x"_a, "g"_a, "gate"_a, "width"_a, "gate_width"_a, "y"_a.none(), "act"_a.none())
      .def("quantize", &NativeProgram::quantize, "x"_a, "width"_a, "act"_a)
      .def("rope", &NativeProgram::rope, "x"_a, "table"_a.noconvert(), "heads"_a, "head_dim"_a, "interleaved"_a)
      .def("kv_write", &NativeProgram::kv_write, "k"_a, "v"_a, "group"_a, "layer"_a)
      .def("add", &NativeProgram::add, "a"_a, "b"_a, "width"_a, "y"_a)
      .def("mul", &NativeProgram::mul, "a"_a, "b"_a, "width"_a, "y"_a)
      .def("scale", &NativeProgram::scale, "x"_a, "factor"_a, "width"_a, "y"_a)
      .def("softcap", &NativeProgram::softcap, "x"_a, "cap"_a, "width"_a, "y"_a)
      .def("copy", &NativeProgram::copy, "x"_a, "width"_a, "y"_a)
      .def("gather_rows", &NativeProgram::gather_rows, "x"_a, "width"_a, "y"_a)
      .def("gemm", &NativeProgram::gemm, "x"_a.none(), "act"_a.none(), "y"_a, "add"_a, "segments"_a)
      .def("gated_gemm", &NativeProgram::gated_gemm, "x"_a.none(), "act"_a.none(), "gate"_a, "width"_a, "y"_a.none(), "y_act"_a.none(),
           "gate_part"_a, "up_part"_a)
      .def("attention", &NativeProgram::attention, "q"_a, "out"_a, "group"_a, "layer"_a, "num_heads"_a, "scale"_a, "window"_a, "softcap"_a)
      .def("causal_conv", &NativeProgram::causal_conv, "x"_a, "weight"_a.noconvert(), "group"_a, "layer"_a, "y"_a)
      .def("gated_delta", &NativeProgram::gated_delta, "qkv"_a, "b"_a, "a"_a, "decay"_a.noconvert(), "dt_bias"_a.noconvert(),
           "tiled_heads"_a, "group"_a, "layer"_a, "out"_a)
      .def("finish", &NativeProgram::finish, "logits"_a, "vocab_size"_a, "pooled"_a = nb::none(), "hidden_size"_a = 0);
}

}  // namespace

void bind_program(nanobind::module_& m) {
  m.attr("HEAD_SLICE") = (int)kHeadSlice;
  bind_pool(m);

  nb::class_<NativeProgram> c(m, "Program", "Stages over an arena, and the threads that run them. Places are (byte offset, row stride).");
  c.def("__init__",
        [](NativeProgram* self, int32_t num_threads, int64_t arena_bytes, int64_t max_num_tokens, int64_t max_num_seqs,
           int64_t max_model_len) {
          new (self) NativeProgram(ProgramSizes{num_threads, arena_bytes, max_num_tokens, max_num_seqs, max_model_len});
        },
        nb::kw_only(), "num_threads"_a, "arena_bytes"_a, "max_num_tokens"_a, "max_num_seqs"_a, "max_model_len"_a);
  bind_load(c);
  bind_load_moe(c);
  c.def("set_tables", &set_tables, "token_ids"_a.noconvert(), "blocks"_a)
      .def("run", &run, "seats"_a.noconvert(), "num_computed_tokens"_a.noconvert(), "num_scheduled_tokens"_a.noconvert(),
           "state_saves"_a.noconvert().none(), "check_signals"_a)
      .def("sample", &sample, "choices"_a, "edits"_a.none(), "allowed"_a.noconvert().none(), "score_ids"_a.noconvert().none(), "results"_a,
           "top_ids"_a.noconvert().none(), "top_logprobs"_a.noconvert().none(), "scores"_a.noconvert().none(), "mode"_a, "check_signals"_a)
      .def("logits", &NativeProgram::logits, "rows"_a.noconvert(), "out"_a.noconvert(), "check_signals"_a)
      .def("pool", &NativeProgram::pool, "rows"_a.noconvert(), "targets"_a.noconvert(), "sums"_a.noconvert(), "check_signals"_a,
           "Add the final hidden state of each row to its sum, in order.")
      .def("time_stages", &NativeProgram::time_stages, "on"_a)
      .def("stage_seconds", &NativeProgram::stage_seconds, "Of the last run and the last sample: stages of the body, of the head, the sampling.")
      .def("cancel", &NativeProgram::cancel)
      .def("close", &NativeProgram::close)
      .def_prop_ro("progress", &NativeProgram::progress)
      .def_prop_ro("num_saturated", &NativeProgram::num_saturated)
      .def_prop_ro("num_screened", &NativeProgram::num_screened)
      .def_prop_ro("peak_bytes", &NativeProgram::peak_bytes);
}

}  // namespace OCTAVO_NS
