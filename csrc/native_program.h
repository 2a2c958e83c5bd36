// A program as Python builds and runs it: every address and extent is checked here, once at load; every batch, once per call.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "batch_checks.h"
#include "bind_arrays.h"
#include "cpu/executor.h"
#include "cpu/isa.h"
#include "step_rows.h"

namespace OCTAVO_NS {

namespace nb = nanobind;

using Vector = Array<const float, 1>;
using RowIds = Array<const int32_t, 1>;
using Table = Array<const int32_t, 2>;

// Where a matrix lies: byte offset in the arena, and elements (floats or activation blocks) from one row to the next.
using Place = std::pair<int64_t, int64_t>;

struct ProgramSizes {
  int32_t num_threads;
  int64_t arena_bytes, max_num_tokens, max_num_seqs, max_model_len;
};

constexpr int64_t kMaxWidth = int64_t(1) << 32;  // elements of an operand's row, or from one to the next

// One segment of a product: matrix, column of the output, bias or none, whether it reads activation blocks. A part of a gated one has
// its first panel in place of the column.
using SegmentArgs = std::tuple<nb::object, int64_t, std::optional<Vector>, bool>;

class NativeProgram {
 public:
  explicit NativeProgram(const ProgramSizes& sizes);

  // Load: groups first, then the ops of the body, start_head, the ops of the head, perhaps start_pool and its ops, finish.
  void add_group(Array<uint8_t, 1> pool, int32_t num_layers, int32_t num_kv_heads, int32_t head_dim, int32_t block_size,
                 const char* dtype);
  void add_state_group(Array<uint8_t, 1> pool, int32_t num_layers, int32_t num_key_heads, int32_t num_value_heads, int32_t key_dim,
                       int32_t value_dim, int32_t conv_width, int32_t conv_channels, bool keeps_border);
  void start_rows() { stages().emplace_back(RowStage{}); }
  void start_head() { start(Part::kHead); }
  void start_pool() { start(Part::kPool); }
  void embedding(nb::object table, float scale, Place y);
  void rms_norm(Place x, Vector weight, int64_t heads, float eps, std::optional<Place> y, std::optional<Place> act);
  void gated_mul(Place x, const char* gate, int64_t width, std::optional<Place> y, std::optional<Place> act);
  void mul_by_gate(Place x, Place g, const char* gate, int64_t width, int64_t gate_width, std::optional<Place> y, std::optional<Place> act);
  void quantize(Place x, int64_t width, Place act);
  void rope(Place x, Array<const float, 2> table, int64_t heads, int64_t head_dim, bool interleaved);
  void kv_write(Place k, Place v, int32_t group, int32_t layer);
  void add(Place a, Place b, int64_t width, Place y);
  void mul(Place a, Place b, int64_t width, Place y);
  void scale(Place x, float factor, int64_t width, Place y);
  void softcap(Place x, float cap, int64_t width, Place y);
  void copy(Place x, int64_t width, Place y);
  void gather_rows(Place x, int64_t width, Place y);
  void gemm(std::optional<Place> x, std::optional<Place> act, Place y, bool add, const std::vector<SegmentArgs>& segments);
  void gated_gemm(std::optional<Place> x, std::optional<Place> act, const char* gate, int64_t width, std::optional<Place> y,
                  std::optional<Place> y_act, const SegmentArgs& gate_part, const SegmentArgs& up_part);
  void route(Place logits, std::optional<Vector> choice_bias, const Routing& routing, Place experts, Place weights);
  void moe_sort(Place experts, int64_t top_k, int64_t num_experts, std::optional<Place> x, std::optional<Place> act, int64_t width,
                Place sorted_rows);
  void moe_gemm(std::optional<Place> x, std::optional<Place> act, Place y, const std::vector<std::vector<SegmentArgs>>& experts);
  void moe_gate(Place x, const char* gate, int64_t width, std::optional<Place> y, std::optional<Place> act);
  void moe_combine(Place x, Place weights, int64_t width, std::optional<Place> add, Place y);
  void attention(Place q, Place out, int32_t group, int32_t layer, int32_t num_heads, float scale, int32_t window, float softcap);
  void causal_conv(Place x, Vector weight, int32_t group, int32_t layer, Place y);
  void gated_delta(Place qkv, Place b, Place a, Vector decay, Vector dt_bias, bool tiled_heads, int32_t group, int32_t layer, Place out);
  void finish(Place logits, int64_t vocab_size, std::optional<Place> pooled, int64_t hidden_size);

  // Run: seconds inside native code, or nothing if the call was cancelled.
  void set_tables(Table token_ids, std::vector<Table> blocks);  // of all seats, read by every run from now on
  std::optional<double> run(const StepPlan& plan, bool check_signals);
  std::optional<double> sample(const SampleArrays& samples, int64_t num_rows, const SampleLimits& limits, bool check_signals);
  std::optional<double> logits(const RowIds& rows, const Array<float, 2>& out, bool check_signals);
  std::optional<double> pool(const RowIds& rows, const RowIds& targets, const Array<double, 2>& sums, bool check_signals);

  void time_stages(bool on);
  std::vector<double> stage_seconds();

  void cancel();
  uint64_t progress() const { return executor_ ? executor_->progress() : 0; }
  int64_t num_saturated() const { return executor_ ? executor_->num_saturated() : 0; }
  int64_t num_screened() const { return num_screened_; }
  int64_t peak_bytes() const { return sizes_.arena_bytes + scratch_.shared + sizes_.num_threads * scratch_.per_thread + screen_bytes_; }
  int64_t vocab_size() const { return program_.head.width; }
  int64_t num_cache_groups() const { return (int64_t)groups_.size(); }
  bool is_state_group(size_t group) const { return std::holds_alternative<StateLayer>(groups_[group].first_layer); }
  void close();

 private:
  struct Group {
    std::variant<CacheLayer, StateLayer> first_layer;
    int64_t layer_bytes;
    int32_t num_layers;
    bool is_seen_whole = false;  // some layer has no window
    int32_t longest_window = 0;
  };

  // The head with estimates for its product.
  struct ScreenedHead {
    Screen screen;
    EntryPoint entry;
  };

  // Steps that estimates told too little of, one after the other, and those to come that are not to be tried.
  struct ScreenPause {
    int32_t num_failed = 0, num_left = 0;
  };

  enum class Part { kBody, kHead, kPool };

  void start(Part part);
  std::vector<Stage>& stages();  // of the part that is being written
  bool is_body() const { return part_ == Part::kBody; }
  int64_t max_rows() const { return is_body() ? sizes_.max_num_tokens : kHeadSlice; }
  void add_row_op(RowOp op, int64_t scratch_floats = 0);
  template <class ProductStage>
  void add_input(ProductStage& stage, const PackedMatrix& weight, bool int8, const std::optional<Place>& x,
                 const std::optional<Place>& act, int64_t rows) const;
  uint8_t* address(const Place& place, int64_t width, int64_t element_bytes, int64_t rows) const;
  Floats floats(const Place& place, int64_t width) const;
  Floats floats(const Place& place, int64_t width, int64_t rows) const;
  Floats floats(const std::optional<Place>& place, int64_t width) const;
  Acts acts(const std::optional<Place>& place, int64_t width) const;
  Acts acts(const std::optional<Place>& place, int64_t width, int64_t rows) const;
  GemmStage product(const std::optional<Place>& x, const std::optional<Place>& act, const Place& y, bool add,
                    const std::vector<SegmentArgs>& segments, int64_t rows);
  int64_t num_sorted_rows() const;
  const float* keep(const Vector& values, int64_t size);
  const PackedMatrix& keep(const nb::object& matrix);
  CacheLayer layer(int32_t group, int32_t index) const;
  StateLayer state_layer(int32_t group, int32_t index) const;
  const Group& group_of(int32_t group, int32_t index, bool is_state) const;
  template <class Call>
  std::optional<double> timed(bool check_signals, const Call& call);
  std::optional<double> run_head(const HeadJob& job, bool check_signals);
  void check_open() const;  // that the program can still be written; before anything of it is touched
  bool can_screen(const SampleArrays& samples, int64_t num_rows) const;
  bool sample_screened(HeadJob& job, const StopCheck& stop);
  void make_screened_head();

  ProgramSizes sizes_;
  std::unique_ptr<Executor> executor_;
  Program program_;
  BatchLimits limits_;
  ScratchBytes scratch_ = {0, 0};
  std::vector<Group> groups_;
  std::unique_ptr<MoePlan> moe_plan_ = std::make_unique<MoePlan>();  // of the mixture that runs: one at a time
  int64_t sorted_experts_ = 0, sorted_per_row_ = 0;  // of the last moe_sort of this part; 0: none
  std::vector<nb::object> kept_;  // matrices, arrays and pools that instructions point into
  Part part_ = Part::kBody;  // that is being written
  bool is_finished_ = false, is_closing_ = false;
  std::unique_ptr<ScreenedHead> screened_head_;      // made by the first step that can use it
  std::atomic<int64_t> screen_bytes_{0};             // that it takes; 0: this head has none. Read while a call runs
  std::atomic<int64_t> num_screened_{0};             // rows so far. Read while a call runs
  ScreenPause screen_pauses_[2];                     // of steps that choose greedily, and of others
  SeatTables tables_;                                // whose arrays are kept alive by the next
  std::vector<Table> kept_tables_;
  StepRows rows_;                                    // of the last run
  int64_t num_hidden_rows_ = 0;                      // of the last run
  std::mutex running_;
};

}  // namespace OCTAVO_NS
