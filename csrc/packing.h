// Packs matrices behind the back of whoever loads a model: reading its tokenizer takes as long as packing a small one.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "packed_matrix.h"

namespace OCTAVO_NS {

class Packing {
 public:
  // Besides the thread that waits, which helps: one thread packs alone, and then only while it waits.
  explicit Packing(int num_threads);
  // Gives up what is not begun.
  ~Packing();
  Packing(const Packing&) = delete;
  Packing& operator=(const Packing&) = delete;

  // Have the matrix filled with these rows. It, and they, stay where they are until all is packed.
  void add(OwnedMatrix& matrix, FileRows rows);
  // Pack a share of what is left; if nothing is, return false once nobody packs any more.
  bool help();

 private:
  struct Job {
    OwnedMatrix* matrix;
    std::shared_ptr<const FileRows> rows;
    int64_t next_panel;
  };

  bool pack_share(std::unique_lock<std::mutex>& lock);
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;  // with panels that nobody has begun
  int num_packing_ = 0;   // threads that fill panels now
  bool is_closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace OCTAVO_NS
