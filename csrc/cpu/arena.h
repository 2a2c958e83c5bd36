// Zeroed memory from the system: committed as it is touched, in huge pages where the system has them, given back on destruction.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.h"

namespace OCTAVO_NS {

constexpr int64_t kPageBytes = 4096;

class Arena {
 public:
  explicit Arena(int64_t bytes);  // throws std::bad_alloc
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  uint8_t* data() const { return data_; }  // page-aligned; from 2 MB on, at a multiple of 2 MB

 private:
  uint8_t* data_;
  size_t size_;
};

}  // namespace OCTAVO_NS
