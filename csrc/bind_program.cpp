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
using Int64s = Array<const int64_t, 1>;
using Float32s = Array<const float, 1>;
using Table = Array<const int32_t, 2>;

std::optional<double> run(NativeProgram& program, const Int32s& token_ids, const Int32s& positions, const Int32s& query_start_loc,
                          const Int32s& seq_lens, const std::vector<Table>& block_tables, const std::vector<Int64s>& slot_mapping,
                          bool check_signals) {
  const int64_t T = (int64_t)token_ids.size(), R = (int64_t)seq_lens.size(), num_groups = program.num_groups();
  check_range("the number of tokens", T, 1, INT32_MAX);
  check_range("the number of requests", R, 1, INT32_MAX);
  check_equal("the number of block tables", (int64_t)block_tables.size(), num_groups);
  check_equal("the number of slot mappings", (int64_t)slot_mapping.size(), num_groups);
  Batch batch;
  batch.num_tokens = (int32_t)T;
  batch.num_requests = (int32_t)R;
  batch.token_ids = token_ids.data();
  batch.positions = data_of_length("positions", positions, T);
  batch.query_start_loc = data_of_length("query_start_loc", query_start_loc, R + 1);
  batch.seq_lens = seq_lens.data();
  for (size_t g = 0; g < block_tables.size(); g++) {
    check_equal("the rows of a block table", (int64_t)block_tables[g].shape(0), R);
    const int64_t* slots = data_of_length("a slot mapping", slot_mapping[g], T);
    batch.groups.push_back({block_tables[g].data(), (int64_t)block_tables[g].shape(1), slots});
  }
  return program.run(batch, check_signals);
}

// Input arrays as in Python's SampleBatch; `edits` are its records as 16-byte rows; the last ones are written.
std::optional<double> sample(NativeProgram& program, const RowIds& rows, const Float32s& temperature, const Int32s& top_k,
                             const Float32s& top_p, const Float32s& min_p, const Array<const uint64_t, 1>& seed, const Int64s& position,
                             const Int32s& num_logprobs, const Int32s& forced_token, const Int64s& edit_offsets,
                             const Array<const uint8_t, 2>& edits, const Int32s& allowed_rows, const Array<const uint32_t, 2>& allowed,
                             const Array<int32_t, 1>& token_ids, const Array<int32_t, 1>& status, const Array<int32_t, 1>& rank,
                             const Array<float, 1>& logprob, const Array<int32_t, 2>& top_ids, const Array<float, 2>& top_logprobs,
                             const char* mode, bool check_signals) {
  const int64_t N = (int64_t)rows.size(), k = (int64_t)top_ids.shape(1);
  static_assert(sizeof(LogitEdit) == 16, "a record of EDIT_DTYPE");
  check_equal("the bytes of an edit", (int64_t)edits.shape(1), sizeof(LogitEdit));
  if ((uintptr_t)edits.data() % alignof(LogitEdit)) fail("edits must be aligned");
  const int64_t mask_words = (program.vocab_size() + 31) / 32;
  check_equal("the words of a mask", (int64_t)allowed.shape(1), mask_words);
  check_equal("the rows of top_ids", (int64_t)top_ids.shape(0), N);
  check_equal("the rows of top_logprobs", (int64_t)top_logprobs.shape(0), N);
  check_equal("the columns of top_logprobs", (int64_t)top_logprobs.shape(1), k);
  const char* column = "a sampling array";
  SampleArrays a;
  a.temperature = data_of_length(column, temperature, N);
  a.top_p = data_of_length(column, top_p, N);
  a.min_p = data_of_length(column, min_p, N);
  a.top_k = data_of_length(column, top_k, N);
  a.num_logprobs = data_of_length(column, num_logprobs, N);
  a.forced_token = data_of_length(column, forced_token, N);
  a.seed = data_of_length(column, seed, N);
  a.position = data_of_length(column, position, N);
  a.edit_offsets = data_of_length("edit_offsets", edit_offsets, N + 1);
  a.edits = (const LogitEdit*)edits.data();
  a.allowed_rows = data_of_length(column, allowed_rows, N);
  a.allowed = allowed.data();
  a.allowed_stride = mask_words;
  a.mode = logprobs_mode(mode);
  a.token_ids = data_of_length(column, token_ids, N);
  a.status = data_of_length(column, status, N);
  a.rank = data_of_length(column, rank, N);
  a.logprob = data_of_length(column, logprob, N);
  a.top_ids = top_ids.data();
  a.top_logprobs = top_logprobs.data();
  a.top_stride = k;
  return program.sample(rows, a, {program.vocab_size(), (int64_t)edits.shape(0), (int64_t)allowed.shape(0)}, check_signals);
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

void bind_load(nb::class_<NativeProgram>& c) {
  c.def("add_group", &NativeProgram::add_group, "pool"_a.noconvert(), "num_layers"_a, "num_kv_heads"_a, "head_dim"_a, "block_size"_a,
        "dtype"_a)
      .def("start_rows", &NativeProgram::start_rows)
      .def("start_head", &NativeProgram::start_head)
      .def("embedding", &NativeProgram::embedding, "table"_a, "scale"_a, "y"_a)
      .def("rms_norm", &NativeProgram::rms_norm, "x"_a, "weight"_a.noconvert(), "heads"_a, "eps"_a, "y"_a.none(), "act"_a.none())
      .def("gated_mul", &NativeProgram::gated_mul, "x"_a, "gate"_a, "width"_a, "y"_a.none(), "act"_a.none())
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
      .def("attention", &NativeProgram::attention, "q"_a, "out"_a, "group"_a, "layer"_a, "num_heads"_a, "scale"_a, "window"_a, "softcap"_a)
      .def("finish", &NativeProgram::finish, "logits"_a, "vocab_size"_a);
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
  c.def("run", &run, "token_ids"_a.noconvert(), "positions"_a.noconvert(), "query_start_loc"_a.noconvert(), "seq_lens"_a.noconvert(),
        "block_tables"_a, "slot_mapping"_a, "check_signals"_a)
      .def("sample", &sample, "rows"_a.noconvert(), "temperature"_a.noconvert(), "top_k"_a.noconvert(), "top_p"_a.noconvert(),
           "min_p"_a.noconvert(), "seed"_a.noconvert(), "position"_a.noconvert(), "num_logprobs"_a.noconvert(),
           "forced_token"_a.noconvert(), "edit_offsets"_a.noconvert(), "edits"_a.noconvert(), "allowed_rows"_a.noconvert(),
           "allowed"_a.noconvert(), "token_ids"_a.noconvert(), "status"_a.noconvert(), "rank"_a.noconvert(), "logprob"_a.noconvert(),
           "top_ids"_a.noconvert(), "top_logprobs"_a.noconvert(), "mode"_a, "check_signals"_a)
      .def("logits", &NativeProgram::logits, "rows"_a.noconvert(), "out"_a.noconvert(), "check_signals"_a)
      .def("cancel", &NativeProgram::cancel)
      .def("close", &NativeProgram::close)
      .def_prop_ro("progress", &NativeProgram::progress)
      .def_prop_ro("num_saturated", &NativeProgram::num_saturated)
      .def_prop_ro("peak_bytes", &NativeProgram::peak_bytes);
}

}  // namespace OCTAVO_NS
