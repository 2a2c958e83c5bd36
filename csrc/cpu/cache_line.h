// Cache lines: what memory is laid out in.
#pragma once

#include <cstdint>

#include "isa.h"

namespace OCTAVO_NS {

constexpr int64_t kCacheLineBytes = 64;

// `bytes` rounded up to whole cache lines.
constexpr int64_t whole_lines(int64_t bytes) { return (bytes + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes; }

}  // namespace OCTAVO_NS
