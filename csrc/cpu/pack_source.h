// Blocks of quantised weights as GGUF files hold them, read one column and one group of 32 at a time.
// Source: block layouts as in ggml, https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
#pragma once

#include <cstdint>
#include <cstring>

#include "pack_layout.h"

namespace OCTAVO_NS {

// 32 values of one column: w + zero_point as bytes, four to a word, k ascending.
struct SourceGroup {
  uint32_t q[8];
  uint16_t d, m;     // f16 bits; K-types: the super-scales. m is what is added: K-types have it negated
  uint8_t scale[2];  // K-types: sub-scale and sub-minimum; Q6_K, Q3_K, Q2_K: what the two halves have
  float table_d;     // formats with a table: the scale, and q are places in the table
};

OCTAVO_INLINE uint16_t load_u16(const uint8_t* p) {
  uint16_t v;
  memcpy(&v, p, 2);
  return v;
}
OCTAVO_INLINE uint32_t load_u32(const uint8_t* p) {
  uint32_t v;
  memcpy(&v, p, 4);
  return v;
}
OCTAVO_INLINE void store_u32(uint8_t* p, uint32_t v) { memcpy(p, &v, 4); }

constexpr uint32_t kNibbles = 0x0f0f0f0fu;
constexpr uint32_t kPairs = 0x03030303u;
constexpr uint32_t kOnes = 0x01010101u;

// Four bits to bit 0 of four bytes.
OCTAVO_INLINE uint32_t spread_bits(uint32_t bits) { return ((bits & 15u) * 0x00204081u) & kOnes; }

// Q4_0 and its relatives: d, (m), (fifth bits,) 16 bytes with k in the low and k + 16 in the high nibbles.
template <WeightFormat F>
inline SourceGroup read_simple_group(const uint8_t* row, int64_t group) {
  using L = Layout<F>;
  const uint8_t* p = row + group * L::kInfo.block_bytes;
  SourceGroup s{};
  s.d = load_u16(p);
  p += 2;
  if (L::kHasMinimum) {
    s.m = load_u16(p);
    p += 2;
  }
  if (L::kBits == 8) {
    for (int j = 0; j < 8; j++) s.q[j] = load_u32(p + 4 * j) ^ 0x80808080u;
    return s;
  }
  uint32_t fifth = 0;
  if (L::kBits == 5) {
    fifth = load_u32(p);
    p += 4;
  }
  for (int j = 0; j < 4; j++) {
    const uint32_t w = load_u32(p + 4 * j);
    s.q[j] = (w & kNibbles) | spread_bits(fifth >> (4 * j)) << 4;
    s.q[j + 4] = ((w >> 4) & kNibbles) | spread_bits(fifth >> (4 * j + 16)) << 4;
  }
  return s;
}

// Q4_K and Q5_K: d, dmin, 8 six-bit scales and minimums in 12 bytes, (32 bytes of fifth bits,) 128 bytes of nibbles.
template <WeightFormat F>
inline SourceGroup read_k_group(const uint8_t* row, int64_t group) {
  const uint8_t* p = row + group / kGroupsPerSuper * Layout<F>::kInfo.block_bytes;
  const int sub = (int)(group % kGroupsPerSuper);
  SourceGroup s{};
  s.d = load_u16(p);
  s.m = (uint16_t)(load_u16(p + 2) ^ 0x8000u);
  const uint8_t* scales = p + 4;
  if (sub < 4) {
    s.scale[0] = scales[sub] & 63;
    s.scale[1] = scales[sub + 4] & 63;
  } else {
    s.scale[0] = (uint8_t)((scales[sub + 4] & 15) | scales[sub - 4] >> 6 << 4);
    s.scale[1] = (uint8_t)((scales[sub + 4] >> 4) | scales[sub] >> 6 << 4);
  }
  const uint8_t* fifth = p + 16;
  const uint8_t* nibbles = p + (Layout<F>::kBits == 5 ? 48 : 16) + 32 * (sub / 2);
  for (int j = 0; j < 8; j++) {
    s.q[j] = (load_u32(nibbles + 4 * j) >> (4 * (sub & 1))) & kNibbles;
    if (Layout<F>::kBits == 5) s.q[j] |= ((load_u32(fifth + 4 * j) >> sub) & kOnes) << 4;
  }
  return s;
}

// Q6_K: 128 bytes of nibbles, 64 of bit pairs, 16 signed scales, d.
inline SourceGroup read_q6_k_group(const uint8_t* row, int64_t group) {
  const uint8_t* p = row + group / kGroupsPerSuper * Layout<WeightFormat::kQ6_K>::kInfo.block_bytes;
  const int sub = (int)(group % kGroupsPerSuper), half = sub / 4, quarter = sub % 4;
  const uint8_t* nibbles = p + 64 * half + 32 * (quarter & 1);
  const uint8_t* pairs = p + 128 + 32 * half;
  SourceGroup s{};
  for (int j = 0; j < 8; j++) {
    const uint32_t low = (load_u32(nibbles + 4 * j) >> (4 * (quarter >> 1))) & kNibbles;
    s.q[j] = low | ((load_u32(pairs + 4 * j) >> (2 * quarter)) & kPairs) << 4;
  }
  s.scale[0] = p[192 + 2 * sub];
  s.scale[1] = p[192 + 2 * sub + 1];
  s.d = load_u16(p + 208);
  return s;
}

// Four pairs of bits for each of 8 words: those that Q2_K and Q3_K have of a group of 32, in 64 bytes.
inline void read_pairs(const uint8_t* pairs, int sub, uint32_t* q) {
  for (int j = 0; j < 8; j++) q[j] = (load_u32(pairs + 32 * (sub / 4) + 4 * j) >> (2 * (sub % 4))) & kPairs;
}

// Q2_K: 16 bytes of a scale and a minimum each, 64 of bit pairs, d, dmin.
inline SourceGroup read_q2_k_group(const uint8_t* row, int64_t group) {
  const uint8_t* p = row + group / kGroupsPerSuper * Layout<WeightFormat::kQ2_K>::kInfo.block_bytes;
  const int sub = (int)(group % kGroupsPerSuper);
  SourceGroup s{};
  read_pairs(p + 16, sub, s.q);
  s.scale[0] = p[2 * sub];
  s.scale[1] = p[2 * sub + 1];
  s.d = load_u16(p + 80);
  s.m = (uint16_t)(load_u16(p + 82) ^ 0x8000u);
  return s;
}

// Q3_K: 32 bytes of third bits, 64 of bit pairs, 16 six-bit scales in 12 bytes, d. A value is its three bits - 4.
inline SourceGroup read_q3_k_group(const uint8_t* row, int64_t group) {
  const uint8_t* p = row + group / kGroupsPerSuper * Layout<WeightFormat::kQ3_K>::kInfo.block_bytes;
  const int sub = (int)(group % kGroupsPerSuper);
  SourceGroup s{};
  read_pairs(p + 32, sub, s.q);
  for (int j = 0; j < 8; j++) s.q[j] |= ((load_u32(p + 4 * j) >> sub) & kOnes) << 2;
  const uint8_t* scales = p + 96;
  for (int h = 0; h < 2; h++) {
    const int i = 2 * sub + h;
    const int low = (scales[i % 8] >> (4 * (i / 8))) & 15, high = (scales[8 + i % 4] >> (2 * (i / 4))) & 3;
    s.scale[h] = (uint8_t)((low | high << 4) - 32);
  }
  s.d = load_u16(p + 108);
  return s;
}

constexpr int8_t kNonLinearTable[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kFloat4Table[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // twice the value

template <WeightFormat F>
constexpr const int8_t* table_of() { return F == WeightFormat::kMXFP4 ? kFloat4Table : kNonLinearTable; }

inline float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

inline float float_of_half(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x400u) return float_of_bits(sign | ((magnitude << 13) + (112u << 23)));
  const float subnormal = (float)magnitude * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}

// Half of 2^(e - 127): its values are twice as large as they should be.
inline float half_of_e8m0(uint8_t e) { return float_of_bits(e < 2 ? 0x200000u << e : (uint32_t)(e - 1) << 23); }

// IQ4_NL: d, 16 bytes of nibbles. IQ4_XS: d, 8 six-bit scales in 6 bytes, 8 x 16 of nibbles. MXFP4: an exponent, 16 of nibbles.
template <WeightFormat F>
inline SourceGroup read_table_group(const uint8_t* row, int64_t group) {
  constexpr int kBlockBytes = Layout<F>::kInfo.block_bytes;
  SourceGroup s{};
  const uint8_t* nibbles;
  if (F == WeightFormat::kIQ4_XS) {
    const uint8_t* p = row + group / kGroupsPerSuper * kBlockBytes;
    const int sub = (int)(group % kGroupsPerSuper);
    const int low = (p[4 + sub / 2] >> (4 * (sub % 2))) & 15, high = (load_u16(p + 2) >> (2 * sub)) & 3;
    s.table_d = float_of_half(load_u16(p)) * (float)((low | high << 4) - 32);
    nibbles = p + 8 + 16 * sub;
  } else {
    const uint8_t* p = row + group * kBlockBytes;
    s.table_d = F == WeightFormat::kMXFP4 ? half_of_e8m0(p[0]) : float_of_half(load_u16(p));
    nibbles = p + (F == WeightFormat::kMXFP4 ? 1 : 2);
  }
  for (int j = 0; j < 4; j++) {
    const uint32_t w = load_u32(nibbles + 4 * j);
    s.q[j] = w & kNibbles;
    s.q[j + 4] = (w >> 4) & kNibbles;
  }
  return s;
}

template <WeightFormat F>
inline SourceGroup read_group(const uint8_t* row, int64_t group) {
  if constexpr (F == WeightFormat::kQ6_K) return read_q6_k_group(row, group);
  else if constexpr (F == WeightFormat::kQ2_K) return read_q2_k_group(row, group);
  else if constexpr (F == WeightFormat::kQ3_K) return read_q3_k_group(row, group);
  else if constexpr (Layout<F>::kInfo.table) return read_table_group<F>(row, group);
  else if constexpr (Layout<F>::kInfo.sub_scales) return read_k_group<F>(row, group);
  else return read_simple_group<F>(row, group);
}

}  // namespace OCTAVO_NS
