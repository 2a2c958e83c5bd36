// Lets threads sleep until another says that something changed: a futex on Linux, a condition variable elsewhere.
#pragma once

#include <atomic>
#include <cstdint>

#include "isa.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#else
#include <chrono>
#include <condition_variable>
#include <mutex>
#endif

namespace OCTAVO_NS {

// Take a ticket with `count`, check that there is nothing to do, then `wait` with that count: a notification in between is not lost.
class WakeSignal {
 public:
  uint32_t count() const { return count_.load(std::memory_order_seq_cst); }

#if defined(__linux__)
  // Return after a notification since `seen` was taken, after `timeout_ms` (-1: none), or for no reason at all.
  void wait(uint32_t seen, int32_t timeout_ms) {
    const timespec timeout = {timeout_ms / 1000, (long)(timeout_ms % 1000) * 1000000};
    syscall(SYS_futex, &count_, FUTEX_WAIT_PRIVATE, seen, timeout_ms < 0 ? nullptr : &timeout, nullptr, 0);
  }
  void notify_all() {
    count_.fetch_add(1, std::memory_order_seq_cst);
    syscall(SYS_futex, &count_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }
#else
  void wait(uint32_t seen, int32_t timeout_ms) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto changed = [&] { return count_.load(std::memory_order_seq_cst) != seen; };
    if (timeout_ms < 0) {
      condition_.wait(lock, changed);
    } else {
      condition_.wait_for(lock, std::chrono::milliseconds(timeout_ms), changed);
    }
  }
  void notify_all() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      count_.fetch_add(1, std::memory_order_seq_cst);
    }
    condition_.notify_all();
  }
#endif

 private:
  std::atomic<uint32_t> count_{0};
  static_assert(sizeof(std::atomic<uint32_t>) == 4, "a futex word");
#if !defined(__linux__)
  std::mutex mutex_;
  std::condition_variable condition_;
#endif
};

}  // namespace OCTAVO_NS
