// Packed weights as Python holds them; and matrix products, for tests and benchmarks: a program calls the kernels itself.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <vector>

#include "bind_arrays.h"
#include "bindings.h"
#include "cpu/act_block.h"
#include "cpu/arena.h"
#include "cpu/pack_layout.h"
#include "cpu/quantize_weights.h"
#include "cpu/simd.h"
#include "packed_matrix.h"
#include "packing.h"

namespace nb = nanobind;

namespace OCTAVO_NS {

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::c_contig, nb::device::cpu>;
using Ids = Array<const int32_t, 1>;
using Vector = Array<const float, 1>;
using Blocks = nb::ndarray<const uint8_t, nb::ndim<3>, nb::device::cpu>;

constexpr int64_t kMaxSide = 1 << 27;  // of a matrix: keeps every size in 64 bits
constexpr int kMaxPackingThreads = 1024;

template <class T>
nb::object owned_array(std::vector<T>&& values, std::initializer_list<size_t> shape) {
  auto kept = std::make_unique<std::vector<T>>(std::move(values));
  T* data = kept->data();
  nb::capsule owner(kept.release(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T>(data, shape, owner));
}

// Pointers to all rows of the sources, one source after the other.
FileRows row_pointers(const std::vector<Bytes>& sources, int64_t row_bytes) {
  FileRows rows;
  for (const Bytes& source : sources) {
    const int64_t size = (int64_t)source.size();
    if (size % row_bytes) fail("a source has %lld bytes, not a multiple of a row's %lld", (long long)size, (long long)row_bytes);
    for (int64_t offset = 0; offset < size; offset += row_bytes) rows.push_back(source.data() + offset);
  }
  return rows;
}

// The file's row for each of the N rows of a matrix [N, K].
FileRows file_rows(WeightFormat format, const std::vector<Bytes>& sources, int64_t N, int64_t K, const std::optional<Ids>& row_order) {
  const int64_t row_bytes = source_row_bytes(format, K);
  if (row_bytes <= 0) fail("K is %lld, not a multiple of the format's block", (long long)K);
  FileRows rows = row_pointers(sources, row_bytes);
  if (row_order) {
    check_length("row_order", *row_order, N);
    check_values("row_order", *row_order, 0, (int64_t)rows.size() - 1);
    FileRows ordered;
    for (int64_t n = 0; n < N; n++) ordered.push_back(rows[(size_t)row_order->data()[n]]);
    rows = std::move(ordered);
  }
  check_equal("the rows of the sources", (int64_t)rows.size(), N);
  return rows;
}

WeightFormat checked_format(const char* name, int number) {
  check_range(name, number, 0, kNumWeightFormats - 1);
  return (WeightFormat)number;
}

int checked_threads(int num_threads) {
  check_range("num_threads", num_threads, 1, kMaxPackingThreads);
  return num_threads;
}

void check_matrix(int64_t N, int64_t K, int num_threads) {
  check_range("N", N, 1, kMaxSide);
  check_range("K", K, 1, kMaxSide);
  checked_threads(num_threads);
}

std::unique_ptr<OwnedMatrix> pack(int format_number, const std::vector<Bytes>& sources, int64_t N, int64_t K,
                                  const std::optional<Ids>& row_order, int num_threads) {
  const WeightFormat format = checked_format("format", format_number);
  check_matrix(N, K, num_threads);
  const FileRows rows = file_rows(format, sources, N, K, row_order);
  nb::gil_scoped_release release;
  auto matrix = std::make_unique<OwnedMatrix>(format, N, K);
  matrix->pack(rows, num_threads);
  return matrix;
}

// A Packing, and what it must not outlive.
class HeldPacking {
 public:
  explicit HeldPacking(int num_threads) : packing_(checked_threads(num_threads)) {}

  nb::object pack(int format_number, const std::vector<Bytes>& sources, int64_t N, int64_t K, const std::optional<Ids>& row_order) {
    const WeightFormat format = checked_format("format", format_number);
    check_matrix(N, K, 1);
    FileRows rows = file_rows(format, sources, N, K, row_order);
    auto owned = std::make_unique<OwnedMatrix>(format, N, K);
    OwnedMatrix& matrix = *owned;
    nb::object result = nb::cast(std::move(owned));
    matrices_.push_back(result);
    sources_.insert(sources_.end(), sources.begin(), sources.end());
    packing_.add(matrix, std::move(rows));
    return result;
  }

  void wait() {
    while (help())
      if (PyErr_CheckSignals()) throw nb::python_error();
    matrices_.clear();
    sources_.clear();
  }

 private:
  bool help() {
    nb::gil_scoped_release release;
    return packing_.help();
  }

  std::vector<nb::object> matrices_;
  std::vector<Bytes> sources_;
  Packing packing_;  // last: ends first
};

std::unique_ptr<OwnedMatrix> quantize_matrix(int format_number, int source_number, const std::vector<Bytes>& sources, int64_t N,
                                             int64_t K, const std::optional<Ids>& row_order, int num_threads) {
  const WeightFormat format = checked_format("format", format_number), source = checked_format("source_format", source_number);
  if (!can_quantize_to(format) || is_quantized(source)) fail("floats can be rounded to Q8_0 and Q4_1 only");
  check_matrix(N, K, num_threads);
  const FileRows rows = file_rows(source, sources, N, K, row_order);
  nb::gil_scoped_release release;
  auto matrix = std::make_unique<OwnedMatrix>(format, N, K);
  const int64_t unfit = matrix->quantize(source, rows, num_threads);
  if (unfit >= 0) fail("row %lld holds a value that is not finite or above %g", (long long)unfit, (double)kMostWeight);
  return matrix;
}

std::unique_ptr<OwnedMatrix> restore(int format_number, const Bytes& data, int64_t N, int64_t K, int num_threads) {
  const WeightFormat format = checked_format("format", format_number);
  check_matrix(N, K, num_threads);
  check_equal("the bytes of the matrix", (int64_t)data.size(), num_panels(N) * panel_bytes(format, K));
  nb::gil_scoped_release release;
  auto matrix = std::make_unique<OwnedMatrix>(format, N, K);
  matrix->restore(data.data(), num_threads);
  return matrix;
}

nb::object dequantize_rows(const OwnedMatrix& w, const Ids& ids) {
  const PackedMatrix& view = w.view();
  check_values("ids", ids, 0, view.N - 1);
  std::vector<float> values(ids.size() * (size_t)view.K);
  for (size_t i = 0; i < ids.size(); i++) dequantize_row(view, ids.data()[i], values.data() + i * (size_t)view.K);
  return owned_array(std::move(values), {ids.size(), (size_t)view.K});
}

nb::object quantize(const Matrix<const float>& x) {
  const auto in = rows_of("x", x);
  const int64_t groups = num_groups(in.columns);
  std::vector<uint8_t> blocks((size_t)(in.rows * groups) * sizeof(ActBlock));
  quantize_rows(in.data, reinterpret_cast<ActBlock*>(blocks.data()), in.rows, in.columns, in.stride, groups);
  return owned_array(std::move(blocks), {(size_t)in.rows, (size_t)groups, sizeof(ActBlock)});
}

// The checked part that both products share: output, bias, panels, scratch.
struct Product {
  GemmOutput out;
  int64_t panel_begin, panel_end;
  Arena scratch;

  Product(const OwnedMatrix& w, int64_t rows, const Matrix<float>& y, const std::optional<Vector>& bias, bool add, int64_t begin,
          int64_t end, bool quantized_activations)
      : panel_begin(begin),
        panel_end(end < 0 ? w.num_panels() : end),
        scratch(gemm_scratch_bytes(w.view().format, w.view().K, quantized_activations)) {
    const auto view = rows_of("y", y, rows, w.view().N);
    out = {view.data, view.stride, bias ? data_of_length("bias", *bias, w.view().N) : nullptr, add};
    check_range("panel_end", panel_end, 0, w.num_panels());
    check_range("panel_begin", panel_begin, 0, panel_end);
  }
};

void product_int8(const OwnedMatrix& w, const Blocks& x, const Matrix<float>& y, const std::optional<Vector>& bias, bool add,
                  int64_t panel_begin, int64_t panel_end) {
  const PackedMatrix& view = w.view();
  if (!is_quantized(view.format)) fail("gemm_int8 needs quantised weights");
  const int64_t groups = num_groups(view.K), block = sizeof(ActBlock);
  if ((int64_t)x.shape(1) != groups || (int64_t)x.shape(2) != block)
    fail("x must be [rows, %lld, %lld] bytes, as quantize_rows returns it", (long long)groups, (long long)block);
  const bool one_row = x.shape(0) <= 1;
  const bool whole_blocks = x.stride(2) == 1 && (groups == 1 || x.stride(1) == block);
  const bool whole_rows = one_row || (x.stride(0) >= groups * block && x.stride(0) % block == 0);
  if (x.size() > 0 && !(whole_blocks && whole_rows)) fail("x must have contiguous rows of whole blocks");
  if ((uintptr_t)x.data() % alignof(ActBlock)) fail("x must be aligned to %zu bytes", alignof(ActBlock));
  const Product product(w, (int64_t)x.shape(0), y, bias, add, panel_begin, panel_end, true);
  nb::gil_scoped_release release;
  gemm_int8(view, reinterpret_cast<const ActBlock*>(x.data()), one_row ? groups : x.stride(0) / block, (int64_t)x.shape(0),
            product.out, product.panel_begin, product.panel_end, product.scratch.data());
}

void product_f32(const OwnedMatrix& w, const Matrix<const float>& x, const Matrix<float>& y, const std::optional<Vector>& bias,
                 bool add, int64_t panel_begin, int64_t panel_end) {
  const auto in = rows_of("x", x);
  check_equal("the columns of x", in.columns, w.view().K);
  const Product product(w, in.rows, y, bias, add, panel_begin, panel_end, false);
  nb::gil_scoped_release release;
  gemm_f32(w.view(), in.data, in.stride, in.rows, product.out, product.panel_begin, product.panel_end, product.scratch.data());
}

}  // namespace

void bind_gemm(nb::module_& m) {
  m.attr("fused_multiply_add") = kFusedMultiplyAdd;
  m.attr("PACKING_VERSION") = kPackingVersion;
  nb::class_<OwnedMatrix>(m, "PackedMatrix", "Weights [N, K] in panels of 16 rows, with the file's values.")
      .def_prop_ro("N", [](const OwnedMatrix& w) { return w.view().N; })
      .def_prop_ro("K", [](const OwnedMatrix& w) { return w.view().K; })
      .def_prop_ro("format", [](const OwnedMatrix& w) { return (int)w.format(); })
      .def_prop_ro("is_quantized", [](const OwnedMatrix& w) { return is_quantized(w.view().format); })
      .def_prop_ro("num_panels", &OwnedMatrix::num_panels)
      .def_prop_ro("nbytes", &OwnedMatrix::nbytes)
      .def_prop_ro("data", [](const OwnedMatrix& w) { return nb::ndarray<nb::numpy, const uint8_t>(w.data(), {(size_t)w.nbytes()}); },
                   nb::rv_policy::reference_internal, "The packed bytes, for restore().")
      .def_static("pack", &pack, nb::arg("format"), nb::arg("sources"), nb::arg("N"), nb::arg("K"),
                  nb::arg("row_order") = nb::none(), nb::arg("num_threads") = 1,
                  "Pack whole file rows, those of each source after those of the one before; row_order[n] picks the row for n.")
      .def_static("quantize", &quantize_matrix, nb::arg("format"), nb::arg("source_format"), nb::arg("sources"), nb::arg("N"),
                  nb::arg("K"), nb::arg("row_order") = nb::none(), nb::arg("num_threads") = 1,
                  "Pack rows of floats, rounded to 8 or 4 bits. ValueError for values that no float16 scale can stand for.")
      .def_static("restore", &restore, nb::arg("format"), nb::arg("data"), nb::arg("N"), nb::arg("K"), nb::arg("num_threads") = 1,
                  "The matrix that had this data, in a build with the same PACKING_VERSION.")
      .def("dequantize_rows", &dequantize_rows, nb::arg("ids"), "Rows of the matrix as float32 [len(ids), K].");
  nb::class_<HeldPacking>(m, "Packing", "Packs matrices on threads of its own, num_threads with the one that waits.")
      .def(nb::init<int>(), nb::arg("num_threads"))
      .def("pack", &HeldPacking::pack, nb::arg("format"), nb::arg("sources"), nb::arg("N"), nb::arg("K"),
           nb::arg("row_order") = nb::none(), "As PackedMatrix.pack, but at once: what the matrix holds is there after wait().")
      .def("wait", &HeldPacking::wait, "Help until all is packed.");
  m.def("quantize_rows", &quantize, nb::arg("x"), "Blocks [rows, ceil(K / 32), 64] of bytes for gemm_int8.");
  m.def("gemm_int8", &product_int8, nb::arg("w"), nb::arg("x"), nb::arg("y"), nb::arg("bias") = nb::none(),
        nb::arg("add") = false, nb::arg("panel_begin") = 0, nb::arg("panel_end") = -1,
        "y = x @ w.T (+ bias) (+ y) with the rows of quantize_rows.");
  m.def("gemm_f32", &product_f32, nb::arg("w"), nb::arg("x"), nb::arg("y"), nb::arg("bias") = nb::none(),
        nb::arg("add") = false, nb::arg("panel_begin") = 0, nb::arg("panel_end") = -1,
        "y = x @ w.T (+ bias) (+ y) in float32.");
}

}  // namespace OCTAVO_NS
