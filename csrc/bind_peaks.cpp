// The limits of the machine as Python measures them.
#include <nanobind/nanobind.h>

#include "bind_arrays.h"
#include "bindings.h"
#include "cpu/peaks.h"
#include "cpu/thread_pool.h"

namespace nb = nanobind;

namespace OCTAVO_NS {

namespace {

constexpr double kMostSeconds = 10;
constexpr int64_t kLeastBytesPerThread = 4096;

void check_run(int64_t num_threads, double seconds) {
  check_range("num_threads", num_threads, 1, ThreadPool::kMaxThreads);
  if (!(seconds > 0 && seconds <= kMostSeconds)) fail("seconds must be in (0, %g], got %g", kMostSeconds, seconds);
}

template <class Measure>
void bind_operations(nb::module_& m, const char* name, Measure measure, const char* doc) {
  m.def(
      name,
      [measure](int32_t num_threads, double seconds) {
        check_run(num_threads, seconds);
        nb::gil_scoped_release release;
        return measure(num_threads, seconds);
      },
      nb::arg("num_threads"), nb::arg("seconds"), doc);
}

}  // namespace

void bind_peaks(nb::module_& m) {
  bind_operations(m, "int8_operations_per_second", int8_operations_per_second, "Of int8 products without any load or store.");
  bind_operations(m, "f32_operations_per_second", f32_operations_per_second, "Of fused multiply-adds without any load or store.");
  m.def(
      "bytes_read_per_second",
      [](const Array<const uint8_t, 1>& data, int32_t num_threads, double seconds) {
        check_run(num_threads, seconds);
        check_range("the bytes of data", (int64_t)data.size(), num_threads * kLeastBytesPerThread, INT64_MAX);
        nb::gil_scoped_release release;
        return bytes_read_per_second(data.data(), (int64_t)data.size(), num_threads, seconds);
      },
      nb::arg("data").noconvert(), nb::arg("num_threads"), nb::arg("seconds"), "Of reading data over and over, each thread its part.");
}

}  // namespace OCTAVO_NS
