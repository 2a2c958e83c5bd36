#include "packing.h"

#include <algorithm>
#include <utility>

namespace OCTAVO_NS {

namespace {

constexpr int64_t kShareBytes = 1 << 20;  // of a matrix that a thread takes at a time: about a millisecond

}  // namespace

Packing::Packing(int num_threads) {
  for (int t = 1; t < num_threads; t++) {
    try {
      threads_.emplace_back([this] { work(); });
    } catch (...) {  // no more threads to be had
      return;
    }
  }
}

Packing::~Packing() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closing_ = true;
    jobs_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Packing::add(OwnedMatrix& matrix, FileRows rows) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back({&matrix, std::make_shared<const FileRows>(std::move(rows)), 0});
  }
  changed_.notify_all();
}

bool Packing::help() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (pack_share(lock)) return true;
  changed_.wait(lock, [this] { return num_packing_ == 0; });
  return false;
}

void Packing::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!is_closing_)
    if (!pack_share(lock)) changed_.wait(lock, [this] { return is_closing_ || !jobs_.empty(); });
}

// Takes a share of the first matrix and packs it without the lock; false if there is none.
bool Packing::pack_share(std::unique_lock<std::mutex>& lock) {
  if (jobs_.empty()) return false;
  Job& job = jobs_.front();
  OwnedMatrix& matrix = *job.matrix;
  const std::shared_ptr<const FileRows> rows = job.rows;
  const int64_t begin = job.next_panel;
  const int64_t end = std::min(matrix.num_panels(), begin + std::max<int64_t>(1, kShareBytes / matrix.view().panel_bytes));
  job.next_panel = end;
  if (end == matrix.num_panels()) jobs_.pop_front();
  num_packing_++;
  lock.unlock();
  matrix.pack(*rows, begin, end);
  lock.lock();
  if (--num_packing_ == 0) changed_.notify_all();
  return true;
}

}  // namespace OCTAVO_NS
