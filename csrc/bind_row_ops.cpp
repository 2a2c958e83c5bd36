// Row-wise ops as Python sees them: for tests and benchmarks; a program calls the kernels itself.
#include <nanobind/nanobind.h>

#include "bind_arrays.h"
#include "bind_names.h"
#include "bindings.h"
#include "cpu/row_ops.h"
#include "cpu/simd.h"
#include "packed_matrix.h"

namespace nb = nanobind;

namespace OCTAVO_NS {

namespace {

using In = Matrix<const float>;
using Out = Matrix<float>;

void bind_norm(nb::module_& m) {
  m.def(
      "rms_norm",
      [](const In& x, const Array<const float, 1>& w, const Out& y, int64_t heads, float eps) {
        check_range("heads", heads, 1, INT32_MAX);
        const auto in = rows_of("x", x);
        const int64_t E = (int64_t)w.shape(0);
        if (E < 1 || in.columns != heads * E)
          fail("x must have heads * len(w) = %lld columns, got %lld", (long long)(heads * E), (long long)in.columns);
        const auto out = rows_of("y", y, in.rows, in.columns);
        rms_norm(in.data, w.data(), out.data, heads, E, eps, in.stride, out.stride, 0, in.rows);
      },
      nb::arg("x").noconvert(), nb::arg("w").noconvert(), nb::arg("y").noconvert(), nb::arg("heads") = 1, nb::arg("eps") = 1e-6f,
      "y = x / sqrt(mean(x^2) + eps) * w over each of `heads` vectors per row; y may be x.");
}

void bind_rope(nb::module_& m) {
  m.def(
      "rope",
      [](const Out& x, const In& table, const Array<const int32_t, 1>& positions, int64_t heads, bool interleaved) {
        const auto rows = rows_of("x", x);
        const auto angles = rows_of("table", table);
        check_range("heads", heads, 1, rows.columns);
        if (rows.columns % heads) fail("x has %lld columns, not a multiple of heads = %lld", (long long)rows.columns, (long long)heads);
        const int64_t D = rows.columns / heads;
        if (angles.columns % 2 || angles.columns > D || angles.stride != angles.columns)
          fail("table must be contiguous with an even number of at most %lld columns, got %lld", (long long)D, (long long)angles.columns);
        check_length("positions", positions, rows.rows);
        check_values("positions", positions, 0, angles.rows - 1);
        rope(rows.data, angles.data, positions.data(), heads, D, angles.columns / 2, interleaved, rows.stride, 0, rows.rows);
      },
      nb::arg("x").noconvert(), nb::arg("table").noconvert(), nb::arg("positions").noconvert(), nb::arg("heads"),
      nb::arg("interleaved") = false, "Rotate the first table.shape[1] dims of each head in place.");
}

void bind_gate(nb::module_& m) {
  m.def(
      "gated_mul",
      [](const In& x, const Out& y, const char* gate) {
        const auto in = rows_of("x", x);
        if (in.columns % 2) fail("x must have an even number of columns, got %lld", (long long)in.columns);
        const auto out = rows_of("y", y, in.rows, in.columns / 2);
        gated_mul(in.data, out.data, gate_of(gate), out.columns, in.stride, out.stride, 0, in.rows);
      },
      nb::arg("x").noconvert(), nb::arg("y").noconvert(), nb::arg("gate"), "y = gate(left half of x) * right half of x.");
  m.def(
      "mul_by_gate",
      [](const In& x, const In& g, const Out& y, const char* gate) {
        const auto in = rows_of("x", x);
        const auto gates = rows_of("g", g, in.rows, g.shape(1) == 1 ? 1 : in.columns);
        const auto out = rows_of("y", y, in.rows, in.columns);
        mul_by_gate(in.data, gates.data, out.data, gate_of(gate), in.columns, gates.columns, in.stride, gates.stride, out.stride, 0, in.rows);
      },
      nb::arg("x").noconvert(), nb::arg("g").noconvert(), nb::arg("y").noconvert(), nb::arg("gate"),
      "y = x * gate(g), where g may be one column; y may be x.");
}

template <class Op>
void bind_binary(nb::module_& m, const char* name, Op op, const char* doc) {
  m.def(
      name,
      [op](const In& a, const In& b, const Out& y) {
        const auto left = rows_of("a", a);
        const auto right = rows_of("b", b, left.rows, left.columns);
        const auto out = rows_of("y", y, left.rows, left.columns);
        op(left.data, right.data, out.data, left.columns, left.stride, right.stride, out.stride, 0, left.rows);
      },
      nb::arg("a").noconvert(), nb::arg("b").noconvert(), nb::arg("y").noconvert(), doc);
}

template <class Op>
void bind_with_scalar(nb::module_& m, const char* name, const char* scalar, Op op, const char* doc) {
  m.def(
      name,
      [op](const In& x, const Out& y, float value) {
        const auto in = rows_of("x", x);
        const auto out = rows_of("y", y, in.rows, in.columns);
        op(in.data, out.data, value, in.columns, in.stride, out.stride, 0, in.rows);
      },
      nb::arg("x").noconvert(), nb::arg("y").noconvert(), nb::arg(scalar), doc);
}

void bind_gather(nb::module_& m) {
  m.def(
      "gather_rows",
      [](const In& x, const Array<const int32_t, 1>& rows, const Out& y) {
        const auto in = rows_of("x", x);
        const auto out = rows_of("y", y, (int64_t)rows.shape(0), in.columns);
        check_values("rows", rows, 0, in.rows - 1);
        gather_rows(in.data, rows.data(), out.data, in.columns, in.stride, out.stride, 0, out.rows);
      },
      nb::arg("x").noconvert(), nb::arg("rows").noconvert(), nb::arg("y").noconvert(), "y[i] = x[rows[i]].");
  m.def(
      "embedding",
      [](const OwnedMatrix& table, const Array<const int32_t, 1>& token_ids, const Out& y, float scale) {
        const PackedMatrix& matrix = table.view();
        const auto out = rows_of("y", y, (int64_t)token_ids.shape(0), matrix.K);
        check_values("token_ids", token_ids, 0, matrix.N - 1);
        embedding(matrix, token_ids.data(), scale, out.data, out.stride, 0, out.rows);
      },
      nb::arg("table"), nb::arg("token_ids").noconvert(), nb::arg("y").noconvert(), nb::arg("scale") = 1.0f,
      "y[t] = scale * row token_ids[t] of a packed table.");
}

// The approximations that several kernels share, sixteen lanes at a time.
template <class Function>
void bind_function(nb::module_& m, const char* name, Function function, const char* doc) {
  m.def(
      name,
      [function](const Array<const float, 1>& x, const Array<float, 1>& y) {
        const int64_t count = (int64_t)x.shape(0);
        check_length("y", y, count);
        for (int64_t i = 0; i < count; i += kLanes) {
          const int left = (int)(count - i < kLanes ? count - i : kLanes);
          store_first(y.data() + i, function(load_first(x.data() + i, left)), left);
        }
      },
      nb::arg("x").noconvert(), nb::arg("y").noconvert(), doc);
}

}  // namespace

void bind_row_ops(nb::module_& m) {
  bind_norm(m);
  bind_rope(m);
  bind_gate(m);
  bind_binary(m, "add_rows", add_rows, "y = a + b.");
  bind_binary(m, "mul_rows", mul_rows, "y = a * b.");
  bind_with_scalar(m, "scale_rows", "factor", scale_rows, "y = factor * x.");
  bind_with_scalar(m, "softcap_rows", "cap", softcap_rows, "y = cap * tanh(x / cap).");
  bind_gather(m);
  bind_function(m, "exp2", [](F32 x) { return exp2(x); }, "2^x for finite or -inf x <= 126; 0 below -100.");
  bind_function(m, "exp", [](F32 x) { return exp(x); }, "e^x for finite or -inf x <= 87; 0 below about -69.");
  bind_function(m, "tanh", [](F32 x) { return tanh(x); }, "tanh(x).");
  bind_function(m, "softplus", [](F32 x) { return softplus(x); }, "log(1 + e^x).");
  bind_function(m, "sigmoid", [](F32 x) { return sigmoid(x); }, "1 / (1 + e^-x); 0 below about -69.");
}

}  // namespace OCTAVO_NS
