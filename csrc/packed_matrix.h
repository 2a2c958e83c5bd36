// A packed weight matrix that owns its memory: what Python holds, and what programs refer to.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/arena.h"
#include "cpu/gemm.h"

namespace OCTAVO_NS {

class OwnedMatrix {
 public:
  // rows[n] is the file's row for column n, rows.size() == N; none of them is kept. K fits the format.
  OwnedMatrix(WeightFormat format, const std::vector<const uint8_t*>& rows, int64_t K, int num_threads);

  const PackedMatrix& view() const { return view_; }
  int64_t num_panels() const { return (view_.N + kPanelColumns - 1) / kPanelColumns; }
  int64_t nbytes() const { return num_panels() * view_.panel_bytes; }

 private:
  Arena memory_;
  PackedMatrix view_;
};

}  // namespace OCTAVO_NS
