// The threads that compute a step: they walk a sequence of stages, each cut in chunks that any thread may run in any order.
//
// Nobody waits for a thread, only for chunks: a chunk is claimed from one atomic counter, and whoever finishes the last chunk of a
// stage prepares the next one. So a thread that is asleep or descheduled holds up the step only if it has claimed a chunk.
// A thread without work spins for at most 50 us, then sleeps until there is some: an idle pool uses no CPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "isa.h"
#include "wake_signal.h"

namespace OCTAVO_NS {

// What a pool walks. Its methods run on the pool's threads and do not throw.
class StageWalk {
 public:
  // Do the serial work that comes next, and return how many chunks the next parallel stage has; 0: the walk is at its end. Called by
  // one thread at a time, after every chunk of the stage before is done.
  virtual int32_t next_stage(int32_t worker) = 0;
  // chunk: 0 .. the count that next_stage returned - 1. worker: 0 .. num_threads - 1, fixed for a thread.
  virtual void run_chunk(int32_t chunk, int32_t worker) = 0;
  // Called by the thread that called run(), before each of its chunks and at least every 50 ms.
  virtual void poll() = 0;

 protected:
  ~StageWalk() = default;
};

class ThreadPool {
 public:
  static constexpr int32_t kMaxThreads = 1024;
  static constexpr int32_t kMaxChunks = 32768;  // of one stage

  explicit ThreadPool(int32_t num_threads);  // the caller of run() is thread 0; throws std::system_error
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int32_t num_threads() const { return num_threads_; }
  // Walk to the end. One call at a time.
  void run(StageWalk& walk);

 private:
  void work(int32_t worker);
  void stop();
  // Run chunks until the stage has none left to claim; return its ticket.
  uint64_t drain(int32_t worker);
  void open_next_stage(int32_t worker, StageWalk& walk);
  void open_stage(int32_t num_chunks);
  bool is_over(uint64_t ticket, std::memory_order order) const;  // a new stage has been opened since
  void wait_for_stage_after(uint64_t ticket, int32_t timeout_ms);

  // Ticket: stage number (32 bits), chunks of the stage (16), next chunk to claim (16). One fetch_add gives a thread all three, so a
  // late thread cannot mistake a chunk of one stage for that of another. Zero chunks: no walk, or its end.
  static_assert(kMaxChunks + kMaxThreads < 1 << 16, "claims that come too late, one of each thread, do not carry over");
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int32_t> num_unfinished_{0};  // chunks of the stage that are not done
  alignas(64) std::atomic<int32_t> num_sleepers_{0};
  std::atomic<bool> is_caller_asleep_{false};
  std::atomic<bool> is_stopping_{false};
  WakeSignal wake_;
  StageWalk* walk_ = nullptr;  // of the running walk; read only by threads that hold a chunk of it
  const int32_t num_threads_;
  const int64_t owner_process_;
  std::vector<std::thread> threads_;
};

}  // namespace OCTAVO_NS
