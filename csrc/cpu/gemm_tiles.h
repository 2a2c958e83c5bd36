// Tile sizes of the matrix kernels per ISA level: what fits the registers. Which tile computes a row never changes its bits.
#pragma once

#include <cstdint>

#include "isa.h"

namespace OCTAVO_NS {

// A direct tile unpacks its panel in registers; for more rows than its limit, panels are expanded to scratch first. The limit
// of float formats is that of the 16-bit ones.
// Products with float activations: up to kFloatFewRows, quantised panels are dequantised in registers; up to kFloatPairRows, float
// panels are read in pairs, since one sum per row would wait for itself.
#if defined(OCTAVO_ISA_AVX512)
constexpr int direct_rows(int bits) { return bits == 6 ? 9 : 12; }  // more would spill
constexpr int direct_limit(int bits) { return 2 * direct_rows(bits); }
constexpr int kExpandedPanels = 2;  // panels that are expanded and multiplied together
constexpr int kExpandedRows = 6;
constexpr int kFloatPanels = 2;
constexpr int kFloatRows = 12;
constexpr int64_t kFloatDirectLimit = 24;
constexpr int kFloatFewRows = 4;
constexpr int64_t kFloatPairRows = 0;  // they always are
#elif defined(OCTAVO_ISA_AVX2)
constexpr int direct_rows(int /*bits*/) { return 4; }
constexpr int direct_limit(int bits) { return bits == 5 || bits == 6 ? 4 : 8; }  // 5 and 6 bits cost the most to unpack
constexpr int kExpandedPanels = 1;
constexpr int kExpandedRows = 4;
constexpr int kFloatPanels = 1;
constexpr int kFloatRows = 6;
constexpr int kFloatFewRows = 3;
constexpr int64_t kFloatPairRows = 2;
constexpr int64_t kFloatDirectLimit = INT64_MAX;  // conversion runs beside the products, on other ports
#else
constexpr int direct_rows(int /*bits*/) { return 2; }
constexpr int direct_limit(int /*bits*/) { return 2; }
constexpr int kExpandedPanels = 1;
constexpr int kExpandedRows = 2;
constexpr int kFloatPanels = 1;
constexpr int kFloatRows = 2;
constexpr int64_t kFloatDirectLimit = 2;
constexpr int kFloatFewRows = 2;
constexpr int64_t kFloatPairRows = 0;
#endif

// How far ahead of a packed stream to fetch: far enough to cover the latency of memory, near enough to stay in L1, and on AVX2
// machines near enough that the hardware's own prefetch keeps up. Tuned for one row on Emerald Rapids and Zen 3.
#if defined(OCTAVO_ISA_AVX512)
constexpr int kPrefetchBytes = 8192;
#else
constexpr int kPrefetchBytes = 1536;
#endif

// Of a core's L2: what expanded panels and a band of activation rows may fill together.
constexpr int64_t kExpandedBytes = 128 << 10;
constexpr int64_t kBandBytes = 128 << 10;
constexpr int64_t kMostExpansions = 8;

}  // namespace OCTAVO_NS
