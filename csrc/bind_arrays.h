// Checked views of numpy arrays: the kernels get plain pointers and extents that are known to be in bounds.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <type_traits>

#include "checks.h"

namespace OCTAVO_NS {

template <class T, size_t Dims>
using Array = nanobind::ndarray<T, nanobind::ndim<Dims>, nanobind::c_contig, nanobind::device::cpu>;
template <class T>
using Matrix = nanobind::ndarray<T, nanobind::ndim<2>, nanobind::device::cpu>;  // rows may be apart: see rows_of

template <class T>
void check_values(const char* name, const Array<const T, 1>& array, int64_t low, int64_t high) {
  for (size_t i = 0; i < array.shape(0); i++) check_range(name, (int64_t)array.data()[i], low, high);
}

template <class T>
void check_length(const char* name, const Array<T, 1>& array, int64_t length) {
  if ((int64_t)array.shape(0) != length)
    fail("%s must have %lld values, got %lld", name, (long long)length, (long long)array.shape(0));
}

template <class T>
T* data_of_length(const char* name, const Array<T, 1>& array, int64_t length) {
  check_length(name, array, length);
  return array.data();
}

// The records of a contiguous array, whose dtype in Python's program/forward_batch.py has the layout of T.
template <class T>
class Records {
 public:
  Records(const char* name, nanobind::handle array) {
    if (PyObject_GetBuffer(array.ptr(), &view_, std::is_const_v<T> ? PyBUF_SIMPLE : PyBUF_WRITABLE)) throw nanobind::python_error();
    if (view_.itemsize == sizeof(T) && (uintptr_t)view_.buf % alignof(T) == 0) return;
    const int64_t size = view_.itemsize;
    PyBuffer_Release(&view_);
    fail("%s must be aligned records of %lld bytes, got %lld", name, (long long)sizeof(T), (long long)size);
  }
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;
  ~Records() { PyBuffer_Release(&view_); }

  T* data() const { return (T*)view_.buf; }
  int64_t size() const { return view_.len / (int64_t)sizeof(T); }

 private:
  Py_buffer view_;
};

// A matrix whose rows are contiguous and `stride` values apart.
template <class T>
struct Rows {
  T* data;
  int64_t rows, columns, stride;
};

template <class T>
Rows<T> rows_of(const char* name, const Matrix<T>& array) {
  Rows<T> view = {array.data(), (int64_t)array.shape(0), (int64_t)array.shape(1), (int64_t)array.shape(1)};
  if (array.size() == 0) return view;  // whose strides mean nothing
  if (view.columns > 1 && array.stride(1) != 1)
    fail("%s must have contiguous rows, got a column stride of %lld", name, (long long)array.stride(1));
  if (view.rows > 1) view.stride = array.stride(0);
  if (view.stride < view.columns)
    fail("%s has rows that overlap: stride %lld, %lld columns", name, (long long)view.stride, (long long)view.columns);
  return view;
}

template <class T>
Rows<T> rows_of(const char* name, const Matrix<T>& array, int64_t rows, int64_t columns) {
  const Rows<T> view = rows_of<T>(name, array);
  if (view.rows != rows || view.columns != columns)
    fail("%s must have shape (%lld, %lld), got (%lld, %lld)", name, (long long)rows, (long long)columns, (long long)view.rows,
         (long long)view.columns);
  return view;
}

}  // namespace OCTAVO_NS
