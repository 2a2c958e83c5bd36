// A packed weight matrix that owns its memory: what Python holds, and what programs refer to.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/gemm.h"
#include "matrix_memory.h"

namespace OCTAVO_NS {

// rows[n] is the file's row for column n.
using FileRows = std::vector<const uint8_t*>;

class OwnedMatrix {
 public:
  // `format` is the file's. All zeros until one of the following has filled it; they share the work between threads of their own.
  OwnedMatrix(WeightFormat format, int64_t N, int64_t K);

  // N rows of the format; K fits it.
  void pack(const FileRows& rows, int num_threads);
  // The same for some of the panels, on this thread.
  void pack(const FileRows& rows, int64_t panel_begin, int64_t panel_end);
  // N rows of floats, rounded to the matrix's format. Return -1, or a row that cannot be: see quantize_panels.
  int64_t quantize(WeightFormat source, const FileRows& rows, int num_threads);
  // nbytes() bytes that were the data() of an equal matrix.
  void restore(const uint8_t* bytes, int num_threads);

  const PackedMatrix& view() const { return view_; }
  WeightFormat format() const { return format_; }
  const uint8_t* data() const { return view_.data; }
  int64_t num_panels() const { return OCTAVO_NS::num_panels(view_.N); }
  int64_t nbytes() const { return num_panels() * view_.panel_bytes; }

 private:
  WeightFormat format_;
  MatrixMemory memory_;
  PackedMatrix view_;
};

}  // namespace OCTAVO_NS
