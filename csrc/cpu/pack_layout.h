// How each weight format lies in memory after packing: which planes, scales and headers, and where.
//
// A panel is 16 columns; its groups of 32 values of k follow one another, so that a product reads one forward stream. In a
// group, a "line" is 64 bytes: byte 4c + i belongs to column c.
//   low bits    4 lines; line j holds k = 4j + i in the low nibbles, k = 16 + 4j + i in the high ones (8-bit: 8 lines of bytes)
//   fifth bit   1 line; bit j is that of k = 4j + i. So is the third of Q3_K
//   bits 5, 6   2 lines; bits 2j, 2j + 1 of line h are those of k = 16h + 4j + i. So are the lowest two of Q2_K and Q3_K
//   scales      16 x f16 d (and 16 x f16 m); K-types 16 x u8 scale, 16 x u8 minimum; Q6_K, Q3_K 2 x 16 x i8 scale;
//               Q2_K 2 x 16 x u8, a scale in the low nibble and a minimum in the high one; IQ4_NL 16 x f32 d;
//               Q8_Top those of Q8_0
// K-types have a header before every eighth group: 16 x f16 d (and 16 x f16 -dmin). IQ4_NL has its table there, as a line of
// four copies. All values are stored unsigned, w + zero_point.
#pragma once

#include <cstdint>

#include "act_block.h"
#include "gemm.h"
#include "isa.h"

namespace OCTAVO_NS {

// Counts changes in this file and in how weights are rounded: kept matrices of another number are made anew.
constexpr int kPackingVersion = 2;

constexpr int kLineBytes = 64;
constexpr int kGroupsPerSuper = 8;  // groups that share a header

struct FormatInfo {
  int block_values;  // of the file: a row is whole blocks
  int block_bytes;
  int bits;          // 0: a float format
  int zero_point;    // of the values that are multiplied; 0: the format has a minimum instead
  int num_scales;    // per group and column
  bool sub_scales;   // integer sub-scales under f16 super-scales (K-types)
  bool table;        // the bits are places in a table of 16 int8 values
};

constexpr FormatInfo format_info(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32: return {1, 4, 0, 0, 0, false, false};
    case WeightFormat::kF16: return {1, 2, 0, 0, 0, false, false};
    case WeightFormat::kBF16: return {1, 2, 0, 0, 0, false, false};
    case WeightFormat::kQ4_0: return {32, 18, 4, 8, 1, false, false};
    case WeightFormat::kQ4_1: return {32, 20, 4, 0, 1, false, false};
    case WeightFormat::kQ5_0: return {32, 22, 5, 16, 1, false, false};
    case WeightFormat::kQ5_1: return {32, 24, 5, 0, 1, false, false};
    case WeightFormat::kQ8_0: return {32, 34, 8, 128, 1, false, false};
    case WeightFormat::kQ4_K: return {256, 144, 4, 0, 1, true, false};
    case WeightFormat::kQ5_K: return {256, 176, 5, 0, 1, true, false};
    case WeightFormat::kQ6_K: return {256, 210, 6, 32, 2, true, false};
    case WeightFormat::kQ2_K: return {256, 84, 2, 0, 2, true, false};
    case WeightFormat::kQ3_K: return {256, 110, 3, 32, 2, true, false};
    case WeightFormat::kIQ4_NL: return {32, 18, 4, 128, 1, false, true};
    case WeightFormat::kIQ4_XS: return {256, 136, 4, 128, 1, false, true};
    case WeightFormat::kMXFP4: return {32, 17, 4, 128, 1, false, true};
    case WeightFormat::kQ4_Z: return {32, 20, 4, 0, 1, false, false};
    case WeightFormat::kQ8_Top: return {32, 34, 6, 32, 1, false, false};
  }
  return {};
}

template <WeightFormat F>
struct Layout {
  static constexpr FormatInfo kInfo = format_info(F);
  static constexpr int kBits = kInfo.bits;  // in memory
  static constexpr int kValueBits = kInfo.table ? 8 : kBits == 3 ? 6 : kBits == 2 ? 5 : kBits;  // of what is multiplied
  static constexpr bool kHasMinimum = kBits > 0 && kInfo.zero_point == 0;
  static constexpr int kPlaneBytes = kBits == 8 ? 8 * kLineBytes : kBits * kLineBytes;
  static constexpr int kHighPlane = (kBits == 3 ? 2 : 4) * kLineBytes;  // where the lines above the lowest bits begin
  static constexpr int kScales = kPlaneBytes;        // where the scales begin
  static constexpr int kMinimums = kScales + (kInfo.sub_scales ? kPanelColumns : 2 * kPanelColumns);
  static constexpr int kScaleBytes = kInfo.table || (kHasMinimum && !kInfo.sub_scales) ? 64 : 32;
  static constexpr int kGroupBytes = kPlaneBytes + kScaleBytes;
  static constexpr int kHeaderBytes = kInfo.table ? kLineBytes : !kInfo.sub_scales ? 0 : kHasMinimum ? 64 : 32;
};

// Offset of a group in its panel; a header lies right before the first group it covers.
template <WeightFormat F>
constexpr int64_t group_offset(int64_t group) {
  using L = Layout<F>;
  return group * L::kGroupBytes + (L::kHeaderBytes ? (group / kGroupsPerSuper + 1) * L::kHeaderBytes : 0);
}

template <WeightFormat F>
constexpr int64_t packed_groups_bytes(int64_t num_groups) {
  return num_groups == 0 ? 0 : group_offset<F>(num_groups - 1) + Layout<F>::kGroupBytes;
}

// A switch's cases for all quantised formats that are packed: CASE(name) for each.
#define OCTAVO_QUANTIZED_CASES(CASE)                                                                     \
  CASE(kQ4_0) CASE(kQ4_1) CASE(kQ5_0) CASE(kQ5_1) CASE(kQ8_0) CASE(kQ4_K) CASE(kQ5_K) CASE(kQ6_K) CASE(kQ2_K) \
  CASE(kQ3_K) CASE(kIQ4_NL) CASE(kQ4_Z)

// The cases for all that are multiplied with int8 activations.
#define OCTAVO_INT8_CASES(CASE) OCTAVO_QUANTIZED_CASES(CASE) CASE(kQ8_Top)

// The cases for those that are packed as another.
#define OCTAVO_OTHER_SOURCE_CASES(CASE) CASE(kIQ4_XS) CASE(kMXFP4)

}  // namespace OCTAVO_NS
