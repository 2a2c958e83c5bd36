#include "thread_pool.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>

#include "float_mode.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace OCTAVO_NS {

namespace {

// Measured on two cores: spinning 25 to 50 us keeps a step at the speed of the cores that are left when others use the machine; shorter
// or none costs 20 us an op, longer or for ever collapses.
constexpr std::chrono::microseconds kSpinTime(50);
constexpr int32_t kPollMs = 50;
constexpr int32_t kNoTimeout = -1;

uint64_t stage_of(uint64_t ticket) { return ticket >> 32; }
int32_t num_chunks_of(uint64_t ticket) { return (int32_t)(ticket >> 16 & 0xffff); }
int32_t next_chunk_of(uint64_t ticket) { return (int32_t)(ticket & 0xffff); }
bool is_drained(uint64_t ticket) { return next_chunk_of(ticket) >= num_chunks_of(ticket); }

void cpu_pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Signals are for Python's threads: blocked while workers are created, which inherit the mask.
class BlockSignals {
 public:
  BlockSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &saved_);
  }
  ~BlockSignals() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }

 private:
  sigset_t saved_;
};

}  // namespace

ThreadPool::ThreadPool(int32_t num_threads) : num_threads_(num_threads), owner_process_(getpid()) {
  const BlockSignals blocked;
  try {
    for (int32_t worker = 1; worker < num_threads; worker++) threads_.emplace_back([this, worker] { work(worker); });
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  if (getpid() == owner_process_) {
    stop();
  } else {  // a forked child has no such threads: joining and detaching are undefined, so their handles are left behind
    new std::vector<std::thread>(std::move(threads_));
  }
}

void ThreadPool::stop() {
  is_stopping_.store(true, std::memory_order_seq_cst);
  open_stage(0);
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(StageWalk& walk) {
  const FloatMode mode;
  walk_ = &walk;
  open_next_stage(0, walk);
  for (;;) {
    const uint64_t ticket = drain(0);
    if (num_chunks_of(ticket) == 0) return;
    walk.poll();
    wait_for_stage_after(ticket, kPollMs);
  }
}

void ThreadPool::work(int32_t worker) {
  const FloatMode mode;
  while (!is_stopping_.load(std::memory_order_acquire)) wait_for_stage_after(drain(worker), kNoTimeout);
}

uint64_t ThreadPool::drain(int32_t worker) {
  for (;;) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    if (is_drained(ticket)) return ticket;
    ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
    if (is_drained(ticket)) return ticket;
    StageWalk& walk = *walk_;
    if (worker == 0) walk.poll();
    walk.run_chunk(next_chunk_of(ticket), worker);
    if (num_unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) open_next_stage(worker, walk);
  }
}

void ThreadPool::open_next_stage(int32_t worker, StageWalk& walk) {
  open_stage(walk.next_stage(worker));
}

void ThreadPool::open_stage(int32_t num_chunks) {
  num_unfinished_.store(num_chunks, std::memory_order_relaxed);
  const uint64_t stage = (stage_of(ticket_.load(std::memory_order_relaxed)) + 1) & 0xffffffff;
  ticket_.store(stage << 32 | (uint64_t)num_chunks << 16, std::memory_order_seq_cst);
  // A stage of one chunk needs no more threads than this one; the end of the walk concerns the caller only.
  const bool is_needed = num_chunks > 1    ? num_sleepers_.load(std::memory_order_seq_cst) > 0
                         : num_chunks == 0 ? is_caller_asleep_.load(std::memory_order_seq_cst)
                                           : false;
  if (is_needed) wake_.notify_all();
}

bool ThreadPool::is_over(uint64_t ticket, std::memory_order order) const {
  return stage_of(ticket_.load(order)) != stage_of(ticket);
}

void ThreadPool::wait_for_stage_after(uint64_t ticket, int32_t timeout_ms) {
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < 64; i++) {
      if (is_over(ticket, std::memory_order_acquire)) return;
      cpu_pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);

  const bool is_caller = timeout_ms != kNoTimeout;
  num_sleepers_.fetch_add(1, std::memory_order_seq_cst);
  if (is_caller) is_caller_asleep_.store(true, std::memory_order_seq_cst);
  const uint32_t seen = wake_.count();
  if (!is_over(ticket, std::memory_order_seq_cst) && !is_stopping_.load(std::memory_order_seq_cst)) wake_.wait(seen, timeout_ms);
  if (is_caller) is_caller_asleep_.store(false, std::memory_order_relaxed);
  num_sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace OCTAVO_NS
