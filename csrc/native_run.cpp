// The calls of a loaded program: bodies, heads and pools, one at a time and without the GIL.
#include <algorithm>
#include <chrono>
#include <new>

#include "native_program.h"

namespace OCTAVO_NS {

namespace {

// True, with Python's error set, if a signal handler raised: called without the GIL, on Python's main thread.
bool has_signal(void*) {
  nb::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

}  // namespace

template <class Call>
std::optional<double> NativeProgram::timed(bool check_signals, const Call& call) {
  const std::unique_lock<std::mutex> lock(running_, std::try_to_lock);
  if (!lock.owns_lock()) throw std::runtime_error("a call is running already; a program runs one at a time");
  if (!executor_ || !is_finished_ || is_closing_) throw std::runtime_error("the program is closed, or not finished");
  executor_->expect_call();  // here, since who cancels holds the GIL
  const StopCheck stop = {check_signals ? has_signal : nullptr, nullptr};
  const auto started = std::chrono::steady_clock::now();
  bool is_complete;
  {
    nb::gil_scoped_release release;
    is_complete = call(stop);
  }
  if (PyErr_Occurred()) throw nb::python_error();  // what the signal handler raised
  if (!is_complete) return std::nullopt;
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
}

void NativeProgram::set_tables(Table token_ids, std::vector<Table> blocks) {
  check_equal("the number of block tables", (int64_t)blocks.size(), num_cache_groups());
  const auto view = [](const Table& table) { return SeatTable{table.data(), (int64_t)table.shape(0), (int64_t)table.shape(1)}; };
  SeatTables tables = {view(token_ids), {}};
  for (const Table& table : blocks) tables.blocks.push_back(view(table));
  timed(false, [&](const StopCheck&) {
    tables_ = std::move(tables);
    return true;
  });
  kept_tables_ = std::move(blocks);
  kept_tables_.push_back(std::move(token_ids));
}

std::optional<double> NativeProgram::run(const StepPlan& plan, bool check_signals) {
  return timed(check_signals, [&](const StopCheck& stop) {
    const Batch batch = rows_.lay_out(tables_, plan, limits_);
    const bool is_complete = executor_->run_body(batch, stop);
    num_hidden_rows_ = is_complete ? batch.num_tokens : 0;
    return is_complete;
  });
}

std::optional<double> NativeProgram::sample(const SampleArrays& samples, int64_t num_rows, const SampleLimits& limits,
                                            bool check_signals) {
  check_samples(samples, num_rows, limits);
  std::vector<int32_t> rows((size_t)num_rows);
  for (int64_t n = 0; n < num_rows; n++) rows[(size_t)n] = samples.choices[n].row;
  HeadJob job = {&program_.head, rows.data(), num_rows, &samples, nullptr, nullptr, nullptr};
  const bool screened = can_screen(samples, num_rows);
  return timed(check_signals, [&](const StopCheck& stop) {
    check_logit_rows(job.rows, job.num_rows, num_hidden_rows_);
    return screened ? sample_screened(job, stop) : executor_->run_head(job, stop);
  });
}

// Where estimates tell too little time after time, they are tried again after 1, 3, 7 ... 63 steps: what comes out is the same either way.
bool NativeProgram::sample_screened(HeadJob& job, const StopCheck& stop) {
  const bool is_greedy = std::all_of(job.sample->choices, job.sample->choices + job.num_rows,
                                     [](const SampleChoice& choice) { return choice.temperature == 0.0f; });
  ScreenPause& pause = screen_pauses_[is_greedy ? 0 : 1];
  if (pause.num_left > 0) {
    pause.num_left--;
    return executor_->run_head(job, stop);
  }
  if (!screened_head_) make_screened_head();
  if (!screened_head_) return executor_->run_head(job, stop);
  job.entry = &screened_head_->entry;
  job.screen = &screened_head_->screen;
  const bool is_complete = executor_->run_head(job, stop);
  if (executor_->needed_all()) {
    pause.num_left = (1 << std::min(pause.num_failed++, 6)) - 1;
  } else if (is_complete) {
    pause.num_failed /= 2;
    num_screened_ += job.num_rows;
  }
  return is_complete;
}

// Whether the tokens of all rows are among their largest logits, and nothing else is asked of the logits.
bool NativeProgram::can_screen(const SampleArrays& samples, int64_t num_rows) const {
  if (screen_bytes_ == 0 || num_rows > kMostScreenedRows) return false;
  return std::all_of(samples.choices, samples.choices + num_rows, [](const SampleChoice& choice) {
    const bool is_few = choice.temperature == 0.0f || (choice.top_k > 0 && choice.top_k <= kMostScreened);
    return is_few && choice.num_logprobs < 0 && choice.num_scores == 0 && choice.forced_token < 0 && choice.allowed_row < 0 &&
           choice.num_edits == 0;
  });
}

// Without memory for it, this program does without.
void NativeProgram::make_screened_head() {
  EntryPoint entry = program_.head;
  PackedMatrix& weight = std::get<GemmStage>(entry.stages.back()).segments[0].weight;
  try {
    screened_head_.reset(new ScreenedHead{Screen(weight), {}});
  } catch (const std::bad_alloc&) {
    screen_bytes_ = 0;
    return;
  }
  weight = screened_head_->screen.top();
  screened_head_->entry = std::move(entry);
  executor_->fill(screened_head_->screen);
}

std::optional<double> NativeProgram::logits(const RowIds& rows, const Array<float, 2>& out, bool check_signals) {
  check_equal("the rows of the logits array", (int64_t)out.shape(0), (int64_t)rows.size());
  check_equal("the columns of the logits array", (int64_t)out.shape(1), program_.head.width);
  return run_head({&program_.head, rows.data(), (int64_t)rows.size(), nullptr, nullptr, out.data(), nullptr}, check_signals);
}

std::optional<double> NativeProgram::pool(const RowIds& rows, const RowIds& targets, const Array<double, 2>& sums, bool check_signals) {
  if (program_.pool.stages.empty()) fail("the program has no pool");
  check_equal("the number of targets", (int64_t)targets.size(), (int64_t)rows.size());
  check_equal("the columns of the sums", (int64_t)sums.shape(1), program_.pool.width);
  check_targets(targets.data(), (int64_t)rows.size(), (int64_t)sums.shape(0));
  const SumArrays arrays = {targets.data(), sums.data()};
  return run_head({&program_.pool, rows.data(), (int64_t)rows.size(), nullptr, &arrays, nullptr, nullptr}, check_signals);
}

std::optional<double> NativeProgram::run_head(const HeadJob& job, bool check_signals) {
  return timed(check_signals, [&](const StopCheck& stop) {
    check_logit_rows(job.rows, job.num_rows, num_hidden_rows_);
    return executor_->run_head(job, stop);
  });
}

void NativeProgram::time_stages(bool on) {
  timed(false, [&](const StopCheck&) {
    executor_->time_stages(on);
    return true;
  });
}

std::vector<double> NativeProgram::stage_seconds() {
  std::vector<double> seconds;
  timed(false, [&](const StopCheck&) {
    for (const auto* list : {&executor_->body_ns(), &executor_->head_ns()}) {
      for (const int64_t ns : *list) seconds.push_back((double)ns * 1e-9);
    }
    return true;
  });
  return seconds;
}

void NativeProgram::cancel() {
  if (executor_) executor_->cancel();
}

void NativeProgram::close() {
  is_closing_ = true;  // no call begins any more, so that one cancel is enough
  cancel();
  std::unique_lock<std::mutex> lock(running_, std::defer_lock);
  {
    nb::gil_scoped_release release;
    lock.lock();
  }
  executor_.reset();
  screened_head_.reset();
  program_ = {};
  tables_ = {};
  kept_.clear();
  kept_tables_.clear();
}

}  // namespace OCTAVO_NS
