#include "executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace OCTAVO_NS {

namespace {

// A stage below this is done by the thread that opens it: waking or waiting for others would take as long.
constexpr double kSerialNs = 3000;
// Chunks are worth claiming one by one from here on, and long enough for cancellation up to there.
constexpr double kShortChunkNs = 8000, kLongChunkNs = 20e6;
constexpr int64_t kChunksPerThread = 4;
constexpr int64_t kMinBandRows = 64;  // of a product that is cut by rows too
constexpr double kSampleNsPerLogit = 0.5, kFoldNs = 2000, kCopyNsPerByte = 0.1, kSumNs = 0.5;
constexpr int64_t kSumColumns = 64;  // whole cache lines of the sums

int64_t choose_chunks(double total_ns, int64_t max_chunks, int32_t num_threads) {
  if (total_ns < kSerialNs) return 1;
  const int64_t worthwhile = std::clamp((int64_t)(total_ns / kShortChunkNs), (int64_t)num_threads, kChunksPerThread * num_threads);
  const int64_t responsive = std::min((int64_t)(total_ns / kLongChunkNs), (int64_t)ThreadPool::kMaxChunks);
  return std::clamp(std::max(worthwhile, responsive), (int64_t)1, std::max(max_chunks, (int64_t)1));
}

struct Range {
  int64_t begin, end;
};
Range part(int64_t size, int64_t index, int64_t num_parts) { return {size * index / num_parts, size * (index + 1) / num_parts}; }

void sample(const SampleArrays& a, int64_t row, float* logits, int64_t vocab_size, uint8_t* scratch) {
  const SampleChoice& c = a.choices[row];
  const uint32_t* allowed = c.allowed_row < 0 ? nullptr : a.allowed + c.allowed_row * a.allowed_stride;
  const SampleParams params = {c.temperature, c.top_k, c.top_p, c.min_p, c.seed, c.position, c.num_logprobs, c.forced_token,
                               a.edits + c.first_edit, c.num_edits, allowed, a.score_ids + c.first_score, c.num_scores};
  sample_row(logits, vocab_size, params, a.mode, scratch, a.results + row, a.top_ids + row * a.top_stride,
             a.top_logprobs + row * a.top_stride, a.scores + c.first_score);
}

// Add columns [begin, end) of rows to their sums, one row after the other: a column's sum is the same whoever makes it.
void add_up(const Floats& rows, int64_t num_rows, const int32_t* targets, double* sums, int64_t width, int64_t begin, int64_t end) {
  for (int64_t row = 0; row < num_rows; row++) {
    const float* x = rows.data + row * rows.stride;
    double* sum = sums + targets[row] * width;
    for (int64_t column = begin; column < end; column++) sum[column] += (double)x[column];
  }
}

// Fills a screen, some panels at a time.
class FillWalk final : public StageWalk {
 public:
  explicit FillWalk(Screen& screen) : screen_(screen) {}

  int32_t next_stage(int32_t) override { return std::exchange(has_begun_, true) ? 0 : (int32_t)kNumChunks; }
  void run_chunk(int32_t chunk, int32_t) override {
    const Range panels = part(screen_.num_panels(), chunk, kNumChunks);
    screen_.make(panels.begin, panels.end);
  }
  void poll() override {}

 private:
  static constexpr int64_t kNumChunks = 64;
  Screen& screen_;
  bool has_begun_ = false;
};

}  // namespace

// One call's way through the stages; those of the head or the pool are walked once per slice, each time followed by the use of its result.
class StepWalk final : public StageWalk {
 public:
  StepWalk(Executor& executor, const Batch& batch, const HeadJob* head, const StopCheck& stop)
      : executor_(executor), stages_(head ? head->entry->stages : executor.program_->body), batch_(batch), head_(head), stop_(stop),
        stage_ns_(!head ? executor.body_ns_ : head->sum ? executor.pool_ns_ : executor.head_ns_),
        num_rows_(head ? 0 : batch.num_tokens) {
    std::fill(stage_ns_.begin(), stage_ns_.end(), 0);
    if (head) next_slice();
  }

  bool is_complete() const { return is_complete_; }

  int32_t next_stage(int32_t worker) override {
    for (;;) {
      if (!stage_ns_.empty()) note_time();
      if (is_cancelled()) return 0;
      if (!advance()) {
        is_complete_ = true;
        return 0;
      }
      executor_.progress_.fetch_add(1, std::memory_order_relaxed);
      const int64_t num_chunks = row_parts_ * unit_parts_;
      if (num_chunks > 1) return (int32_t)num_chunks;
      if (num_chunks == 1) run_chunk(0, worker);
      if (worker == 0) poll();
    }
  }

  void run_chunk(int32_t chunk, int32_t worker) override {
    if (is_cancelled()) return;
    chunk = striped(chunk);
    const Range rows = part(num_rows_, chunk / unit_parts_, row_parts_), units = part(num_units_, chunk % unit_parts_, unit_parts_);
    uint8_t* scratch = executor_.thread_scratch(worker);
    switch (task_) {
      case Task::kRows: {
        const int32_t* logit_rows = head_ ? head_->rows + slice_begin_ : nullptr;
        const int64_t saturated = run_rows(std::get<RowStage>(*stage_), batch_, logit_rows, units.begin, units.end, (float*)scratch);
        if (saturated) executor_.num_saturated_.fetch_add(saturated, std::memory_order_relaxed);
        break;
      }
      case Task::kGemm:
        run_units(std::get<GemmStage>(*stage_), rows.begin, rows.end, units.begin, units.end, scratch);
        break;
      case Task::kGatedGemm:
        run_units(std::get<GatedGemmStage>(*stage_), rows.begin, rows.end, units.begin, units.end, scratch);
        break;
      case Task::kMoeSort:
        copy_sorted_rows(std::get<MoeSortStage>(*stage_), units.begin, units.end);
        break;
      case Task::kMoeGemm:
        run_part(std::get<MoeGemmStage>(*stage_), chunk, unit_parts_, scratch);
        break;
      case Task::kAttention:
        attention_units(attention_, units.begin, units.end, executor_.shared_scratch(), scratch);
        break;
      case Task::kFold:
        for (int64_t u = units.begin; u < units.end; u++) attention_fold(attention_, u, executor_.shared_scratch());
        break;
      case Task::kCausalConv:
        for (int64_t u = units.begin; u < units.end; u++) causal_conv_unit(causal_conv_, u);
        break;
      case Task::kGatedDelta:
        for (int64_t u = units.begin; u < units.end; u++) gated_delta_unit(gated_delta_, u, scratch);
        break;
      case Task::kLogits:
        for (int64_t row = units.begin; row < units.end; row++) use_logits(row, scratch);
        break;
      case Task::kSum: {
        const int64_t width = head_->entry->width, end = std::min(units.end * kSumColumns, width);
        const int32_t* targets = head_->sum->targets + slice_begin_;
        add_up(head_->entry->result, num_rows_, targets, head_->sum->sums, width, units.begin * kSumColumns, end);
        break;
      }
    }
  }

  void poll() override {
    if (!stop_.should_stop || is_cancelled()) return;
    const auto now = std::chrono::steady_clock::now();
    if (now < next_check_) return;
    if (stop_.should_stop(stop_.context)) executor_.cancel();
    next_check_ = std::chrono::steady_clock::now() + kCheckInterval;
  }

 private:
  enum class Task { kRows, kGemm, kGatedGemm, kMoeSort, kMoeGemm, kAttention, kFold, kCausalConv, kGatedDelta, kLogits, kSum };
  static constexpr std::chrono::milliseconds kCheckInterval{50};

  // Chunks in the order in which they are claimed, so that threads that take turns each walk through neighbours: one stream of weights.
  int32_t striped(int32_t chunk) const {
    const int32_t num_chunks = (int32_t)(row_parts_ * unit_parts_), threads = executor_.num_threads();
    const int32_t turns = num_chunks / threads, turn = chunk / threads;
    return turn < turns ? chunk % threads * turns + turn : chunk;
  }

  bool is_cancelled() const { return executor_.is_cancelled_.load(std::memory_order_relaxed); }

  // Count the time since the last call for the stage that has ended.
  void note_time() {
    const auto now = std::chrono::steady_clock::now();
    if (next_ > 0) stage_ns_[next_ - 1] += std::chrono::nanoseconds(now - stage_began_).count();
    stage_began_ = now;
  }

  // Set the next task and its cut; false at the end.
  bool advance() {
    if (num_folds_ > 0) {
      const int64_t folds = num_folds_;
      num_folds_ = 0;
      set_task(Task::kFold, folds, (double)folds * kFoldNs);
    } else if (num_rows_ > 0 && next_ < stages_.size()) {
      stage_ = &stages_[next_++];
      std::visit([this](const auto& stage) { begin(stage); }, *stage_);
    } else if (head_ && num_rows_ > 0 && next_ == stages_.size()) {
      next_++;
      begin_use();
    } else if (needs_all_.load(std::memory_order_relaxed)) {
      needs_all_.store(false, std::memory_order_relaxed);
      are_estimates_ = false;
      executor_.needed_all_ = true;
      next_ = stages_.size();  // what uses the logits comes again
      stage_ = &executor_.program_->head.stages.back();
      std::visit([this](const auto& stage) { begin(stage); }, *stage_);
    } else if (head_ && slice_begin_ + num_rows_ < head_->num_rows) {
      slice_begin_ += num_rows_;
      next_slice();
      return advance();
    } else {
      return false;
    }
    return true;
  }

  void begin_use() {
    const int64_t width = head_->entry->width;
    const double values = (double)(num_rows_ * width);
    if (head_->sum)
      set_task(Task::kSum, (width + kSumColumns - 1) / kSumColumns, values * kSumNs);
    else
      set_task(Task::kLogits, num_rows_, values * kSampleNsPerLogit);
  }

  void next_slice() {
    num_rows_ = std::min((int64_t)kHeadSlice, head_->num_rows - slice_begin_);
    next_ = 0;
    are_estimates_ = head_->screen != nullptr;
    if (are_estimates_) budget_.store(num_rows_ * head_->screen->worthwhile_panels(), std::memory_order_relaxed);
  }

  void begin(const RowStage& stage) { set_task(Task::kRows, num_rows_ * stage.rows_per_row, (double)num_rows_ * row_ns(stage)); }

  void begin(const GemmStage& stage) { begin_product(Task::kGemm, stage); }
  void begin(const GatedGemmStage& stage) { begin_product(Task::kGatedGemm, stage); }

  template <class ProductStage>
  void begin_product(Task task, const ProductStage& stage) {
    const double ns = std::max(fixed_ns(stage), (double)num_rows_ * row_ns(stage));
    set_task(task, num_units(stage), ns);
    const int64_t wanted = choose_chunks(ns, INT64_MAX, executor_.num_threads());
    if (num_units_ < wanted) row_parts_ = std::clamp(wanted / num_units_, (int64_t)1, std::max(num_rows_ / kMinBandRows, (int64_t)1));
  }

  void begin(const MoeSortStage& stage) {
    sort_rows(stage, num_rows_);
    const int64_t sorted_rows = num_rows_ * stage.top_k;
    set_task(Task::kMoeSort, sorted_rows, (double)(sorted_rows * stage.row_bytes) * kCopyNsPerByte);
  }

  void begin(const MoeGemmStage& stage) { set_task(Task::kMoeGemm, num_units(stage), plan_products(stage)); }

  void begin(const AttentionStage& stage) {
    attention_ = attention_args(stage, batch_);
    const AttentionPlan plan = attention_plan(attention_, executor_.num_threads(), executor_.shared_scratch());
    num_folds_ = plan.num_folds;
    set_task(Task::kAttention, plan.num_units, attention_ns(stage, batch_));
  }

  void begin(const CausalConvStage& stage) {
    causal_conv_ = causal_conv_args(stage, batch_);
    set_task(Task::kCausalConv, causal_conv_units(causal_conv_), causal_conv_ns(stage, batch_));
  }

  void begin(const GatedDeltaStage& stage) {
    gated_delta_ = gated_delta_args(stage, batch_);
    set_task(Task::kGatedDelta, gated_delta_units(gated_delta_), gated_delta_ns(stage, batch_));
  }

  void set_task(Task task, int64_t num_units, double total_ns) {
    task_ = task;
    num_units_ = num_units;
    unit_parts_ = choose_chunks(total_ns, num_units, executor_.num_threads());
    row_parts_ = 1;
  }

  bool refine(int64_t row, float* logits, uint8_t* scratch) {
    const Acts& act = std::get<GemmStage>(stages_.back()).act;
    const SampleChoice& choice = head_->sample->choices[slice_begin_ + row];
    return head_->screen->refine(act.data + row * act.stride, logits, choice.temperature == 0.0f ? 1 : choice.top_k, budget_, scratch);
  }

  void use_logits(int64_t row, uint8_t* scratch) {
    const EntryPoint& entry = *head_->entry;
    float* logits = entry.result.data + row * entry.result.stride;
    const int64_t out_row = slice_begin_ + row;
    if (head_->sample) {
      if (are_estimates_ && !refine(row, logits, scratch)) {
        needs_all_.store(true, std::memory_order_relaxed);
        return;
      }
      sample(*head_->sample, out_row, logits, entry.width, scratch);
    } else {
      memcpy(head_->logits + out_row * entry.width, logits, (size_t)entry.width * sizeof(float));
    }
  }

  Executor& executor_;
  const std::vector<Stage>& stages_;
  const Batch& batch_;
  const HeadJob* head_;
  const StopCheck stop_;
  std::vector<int64_t>& stage_ns_;  // by stage, and the use of logits; empty: nobody asks
  std::chrono::steady_clock::time_point stage_began_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point next_check_ = std::chrono::steady_clock::now() + kCheckInterval;  // of the calling thread only

  size_t next_ = 0;  // stage
  const Stage* stage_ = nullptr;
  int64_t num_rows_, slice_begin_ = 0;
  Task task_ = Task::kRows;
  int64_t num_units_ = 0, unit_parts_ = 1, row_parts_ = 1;
  AttentionArgs attention_ = {};
  CausalConvArgs causal_conv_ = {};
  GatedDeltaArgs gated_delta_ = {};
  int64_t num_folds_ = 0;
  bool are_estimates_ = false;  // what the stages of the head give
  std::atomic<int64_t> budget_{0};
  std::atomic<bool> needs_all_{false};
  bool is_complete_ = false;
};

void Executor::set_program(const Program& program, const ScratchBytes& scratch) {
  program_ = &program;
  scratch_bytes_ = scratch;
  scratch_ = std::make_unique<Arena>(scratch.shared + num_threads_ * scratch.per_thread);
}

void Executor::time_stages(bool on) {
  body_ns_.assign(on ? program_->body.size() : 0, 0);
  head_ns_.assign(on ? program_->head.stages.size() + 1 : 0, 0);
}

bool Executor::run_body(const Batch& batch, const StopCheck& stop) {
  StepWalk walk(*this, batch, nullptr, stop);
  return run(walk);
}

bool Executor::run_head(const HeadJob& job, const StopCheck& stop) {
  const Batch no_batch;
  needed_all_ = false;
  StepWalk walk(*this, no_batch, &job, stop);
  return run(walk);
}

void Executor::fill(Screen& screen) {
  FillWalk walk(screen);
  pool_.run(walk);
}

bool Executor::run(StepWalk& walk) {
  pool_.run(walk);
  return walk.is_complete();
}

}  // namespace OCTAVO_NS
