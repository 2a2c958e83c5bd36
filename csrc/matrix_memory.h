// Memory of packed matrices. Small ones lie side by side in one large mapping, so that they too are in huge pages: an expert's matrix
// below 2 MB would be in 4 KB ones, and the translation of its addresses would cost a sixth of the speed of reading it.
#pragma once

#include <cstdint>
#include <memory>

#include "cpu/isa.h"

namespace OCTAVO_NS {

class MatrixMemory {
 public:
  // `bytes` zeroed, 64-byte aligned, with `slack` more behind them that may be read. Throws std::bad_alloc.
  MatrixMemory(int64_t bytes, int64_t slack);

  uint8_t* data() const { return data_.get(); }

 private:
  std::shared_ptr<uint8_t> data_;  // keeps its mapping, which others may share
};

}  // namespace OCTAVO_NS
