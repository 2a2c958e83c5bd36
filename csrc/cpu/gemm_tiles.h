// Tile sizes of the matrix kernels per ISA level: what fits the registers. Which tile computes a row never changes its bits.
#pragma once

#include <cstdint>

#include "isa.h"

namespace OCTAVO_NS {

// A direct tile unpacks its panel in registers; for more rows than its limit, panels are expanded to scratch first. The limit
// of float formats is that of the 16-bit ones.
#if defined(OCTAVO_ISA_AVX512)
constexpr int direct_rows(int bits) { return bits == 6 ? 9 : 12; }  // more would spill
constexpr int direct_limit(int bits) { return 2 * direct_rows(bits); }
constexpr int kExpandedPanels = 2;  // panels that are expanded and multiplied together
constexpr int kExpandedRows = 6;
constexpr int kFloatPanels = 2;
constexpr int kFloatRows = 12;
constexpr int64_t kFloatDirectLimit = 24;
#elif defined(OCTAVO_ISA_AVX2)
constexpr int direct_rows(int /*bits*/) { return 4; }
constexpr int direct_limit(int bits) { return bits == 5 || bits == 6 ? 4 : 8; }  // 5 and 6 bits cost the most to unpack
constexpr int kExpandedPanels = 1;
constexpr int kExpandedRows = 4;
constexpr int kFloatPanels = 1;
constexpr int kFloatRows = 6;
constexpr int64_t kFloatDirectLimit = INT64_MAX;  // conversion runs beside the products, on other ports
#else
constexpr int direct_rows(int /*bits*/) { return 2; }
constexpr int direct_limit(int /*bits*/) { return 2; }
constexpr int kExpandedPanels = 1;
constexpr int kExpandedRows = 2;
constexpr int kFloatPanels = 1;
constexpr int kFloatRows = 2;
constexpr int64_t kFloatDirectLimit = 2;
#endif

}  // namespace OCTAVO_NS
