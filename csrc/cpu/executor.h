// Runs a program's body, and then its head or pool, on the thread pool. One call at a time; `cancel` from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "arena.h"
#include "program.h"
#include "sampler.h"
#include "screen.h"
#include "thread_pool.h"

namespace OCTAVO_NS {

// One logit row and how its token is chosen, as in SampleParams: a record of Python's CHOICE_DTYPE.
struct SampleChoice {
  int32_t row;  // of the body's last run
  float temperature;
  int32_t top_k;
  float top_p, min_p;
  int32_t num_logprobs;
  uint64_t seed;
  int64_t position;
  int32_t forced_token;
  int32_t allowed_row;  // of `allowed`; -1: all tokens are allowed
  int32_t first_edit, num_edits;
  int32_t first_score, num_scores;
};

struct SampleArrays {
  const SampleChoice* choices;  // [N]
  const LogitEdit* edits;
  const int32_t* score_ids;  // [S]
  const uint32_t* allowed;   // [A, allowed_stride]
  int64_t allowed_stride;
  LogprobsMode mode;
  SampleResult* results;  // [N], also the records of Python's RESULT_DTYPE
  int32_t* top_ids;       // [N, top_stride]
  float* top_logprobs;
  int64_t top_stride;
  float* scores;  // [S]
};

// Where rows of the pool are added up, in the order in which they are given.
struct SumArrays {
  const int32_t* targets;  // [N] which sum each row belongs to
  double* sums;            // [any, E]
};

// The work of an entry point on rows of the body's last result: logits are sampled, or copied out; hidden states are added up.
struct HeadJob {
  const EntryPoint* entry;
  const int32_t* rows;  // [N]
  int64_t num_rows;
  const SampleArrays* sample;  // or null:
  const SumArrays* sum;        // or null:
  float* logits;               // [N, V]
  const Screen* screen;        // or null: what the entry gives are estimates, for `sample` to be refined
};

// Asked by the calling thread about every 50 ms while a call runs; true stops it.
struct StopCheck {
  bool (*should_stop)(void* context);  // null: never
  void* context;
};

struct ScratchBytes {
  int64_t shared, per_thread;
};

class Executor {
 public:
  // The program's addresses may point into `arena()`, so it is handed over afterwards. Throws std::bad_alloc, std::system_error.
  Executor(int32_t num_threads, int64_t arena_bytes) : pool_(num_threads), arena_(arena_bytes), num_threads_(num_threads) {}

  const Arena& arena() const { return arena_; }
  int32_t num_threads() const { return num_threads_; }
  // Allocates scratch. The program is complete and outlives the calls.
  void set_program(const Program& program, const ScratchBytes& scratch);

  // Both return false if the call was cancelled; what it was to write is then undefined.
  bool run_body(const Batch& batch, const StopCheck& stop);
  bool run_head(const HeadJob& job, const StopCheck& stop);
  void fill(Screen& screen);
  // Whether the last head needed all logits though it had a screen.
  bool needed_all() const { return needed_all_; }

  // From the next call on, note how long each stage takes. Between calls.
  void time_stages(bool on);
  // Of the last body and the last head, in nanoseconds: from the end of the stage before to its own end, over all slices of the head.
  // The last entry of the head is the use of its logits. Empty if stages are not timed.
  const std::vector<int64_t>& body_ns() const { return body_ns_; }
  const std::vector<int64_t>& head_ns() const { return head_ns_; }

  // Stop the running call, or the one that `expect_call` announced, soon. Without one: no effect. Safe in a signal handler.
  void cancel() { is_cancelled_.store(true, std::memory_order_relaxed); }
  // Announces a call: what was cancelled before is over. Not at the same time as `cancel`.
  void expect_call() { is_cancelled_.store(false, std::memory_order_relaxed); }
  // Grows while a call advances.
  uint64_t progress() const { return progress_.load(std::memory_order_relaxed); }
  // Keys and values that did not fit the cache's dtype, so far.
  int64_t num_saturated() const { return num_saturated_.load(std::memory_order_relaxed); }

 private:
  friend class StepWalk;

  uint8_t* shared_scratch() const { return scratch_->data(); }
  uint8_t* thread_scratch(int32_t worker) const { return scratch_->data() + scratch_bytes_.shared + worker * scratch_bytes_.per_thread; }
  bool run(class StepWalk& walk);

  ThreadPool pool_;
  Arena arena_;
  const int32_t num_threads_;
  const Program* program_ = nullptr;
  ScratchBytes scratch_bytes_ = {0, 0};
  std::unique_ptr<Arena> scratch_;
  std::vector<int64_t> body_ns_, head_ns_;
  std::vector<int64_t> pool_ns_;  // empty: it is not timed
  bool needed_all_ = false;
  std::atomic<bool> is_cancelled_{false};
  std::atomic<uint64_t> progress_{0};
  std::atomic<int64_t> num_saturated_{0};
};

}  // namespace OCTAVO_NS
