// Refusing what Python gave: all of these throw std::invalid_argument, which Python sees as a ValueError that says what was expected.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <stdexcept>

#include "cpu/isa.h"

namespace OCTAVO_NS {

[[noreturn]] __attribute__((format(printf, 1, 2), cold)) inline void fail(const char* format, ...) {
  char message[256];
  va_list values;
  va_start(values, format);
  vsnprintf(message, sizeof message, format, values);
  va_end(values);
  throw std::invalid_argument(message);
}

inline void check_range(const char* what, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    fail("%s must be in [%lld, %lld], got %lld", what, (long long)low, (long long)high, (long long)value);
}

inline void check_equal(const char* what, int64_t value, int64_t expected) {
  if (value != expected) fail("%s must be %lld, got %lld", what, (long long)expected, (long long)value);
}

}  // namespace OCTAVO_NS
