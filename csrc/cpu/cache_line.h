// Cache lines: what memory is laid out in.
#pragma once

#include <cstdint>

#include "isa.h"

namespace OCTAVO_NS {

constexpr int64_t kCacheLineBytes = 64;

template <class Size>
constexpr Size round_up(Size value, Size multiple) { return (value + multiple - 1) / multiple * multiple; }

// `bytes` rounded up to whole cache lines.
constexpr int64_t whole_lines(int64_t bytes) { return round_up(bytes, kCacheLineBytes); }

}  // namespace OCTAVO_NS
