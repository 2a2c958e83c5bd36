// Re-tiles weights into panels without changing a value, and reads single rows back.
#include <cstring>

#include "cache_line.h"
#include "float_panel.h"
#include "gemm_codec.h"
#include "pack_layout.h"
#include "pack_source.h"
#include "pack_transpose.h"

namespace OCTAVO_NS {

namespace {

// A group's lines of one column c: the low bits, then those above them.
template <int kBits>
void write_column(const uint32_t* q, uint8_t* group, int c) {
  uint8_t* p = group + 4 * c;
  if (kBits < 4) {
    uint32_t pairs[2] = {0, 0}, third = 0;
    for (int j = 0; j < 8; j++) {
      pairs[j >> 2] |= (q[j] & kPairs) << (2 * (j & 3));
      third |= ((q[j] >> 2) & kOnes) << j;
    }
    for (int h = 0; h < 2; h++) store_u32(p + kLineBytes * h, pairs[h]);
    if (kBits == 3) store_u32(p + kLineBytes * 2, third);
    return;
  }
  if (kBits == 8) {
    for (int j = 0; j < 8; j++) store_u32(p + kLineBytes * j, q[j]);
    return;
  }
  for (int j = 0; j < 4; j++) store_u32(p + kLineBytes * j, (q[j] & kNibbles) | (q[j + 4] & kNibbles) << 4);
  uint32_t high[2] = {0, 0};
  for (int j = 0; j < 8; j++) {
    if (kBits == 5) high[0] |= ((q[j] >> 4) & kOnes) << j;
    if (kBits == 6) high[j >> 2] |= ((q[j] >> 4) & kPairs) << (2 * (j & 3));
  }
  for (int h = 0; h < kBits - 4; h++) store_u32(p + kLineBytes * (4 + h), high[h]);
}

// The inverse of write_column.
template <int kBits>
void read_column(const uint8_t* group, int c, uint32_t* q) {
  const uint8_t* p = group + 4 * c;
  for (int j = 0; j < 8; j++) {
    if (kBits < 4) {
      q[j] = (load_u32(p + kLineBytes * (j >> 2)) >> (2 * (j & 3))) & kPairs;
      if (kBits == 3) q[j] |= ((load_u32(p + kLineBytes * 2) >> j) & kOnes) << 2;
      continue;
    }
    if (kBits == 8) {
      q[j] = load_u32(p + kLineBytes * j);
      continue;
    }
    q[j] = (load_u32(p + kLineBytes * (j & 3)) >> (j < 4 ? 0 : 4)) & kNibbles;
    if (kBits == 5) q[j] |= ((load_u32(p + kLineBytes * 4) >> j) & kOnes) << 4;
    if (kBits == 6) q[j] |= ((load_u32(p + kLineBytes * (4 + (j >> 2))) >> (2 * (j & 3))) & kPairs) << 4;
  }
}

template <WeightFormat F>
void write_scales(const SourceGroup& s, uint8_t* group, uint8_t* header, int c) {
  using L = Layout<F>;
  if (L::kInfo.table) {
    memcpy(group + L::kScales + 4 * c, &s.table_d, 4);
    return;
  }
  uint8_t* halves = L::kInfo.sub_scales ? header : group + L::kScales;
  if (L::kInfo.sub_scales) {
    group[L::kScales + c] = s.scale[0];
    group[L::kScales + kPanelColumns + c] = s.scale[1];
  }
  memcpy(halves + 2 * c, &s.d, 2);
  if (L::kHasMinimum) memcpy(halves + 2 * kPanelColumns + 2 * c, &s.m, 2);
}

template <WeightFormat F>
void pack_quantized_panel(const uint8_t* const* rows, int columns, int64_t K, uint8_t* panel) {
  using L = Layout<F>;
  for (int64_t g = 0; g < num_groups(K); g++) {
    uint8_t* group = panel + group_offset<F>(g);
    uint8_t* header = panel + group_offset<F>(g - g % kGroupsPerSuper) - L::kHeaderBytes;
    for (int i = 0; L::kInfo.table && i < kLineBytes; i++) header[i] = (uint8_t)(table_of<F>()[i % 16] + L::kInfo.zero_point);
    for (int c = 0; c < columns; c++) {
      const SourceGroup source = read_group<F>(rows[c], g);
      write_column<L::kBits>(source.q, group, c);
      write_scales<F>(source, group, header, c);
    }
  }
}

template <WeightFormat F>
void pack_panel(const uint8_t* const* rows, int columns, int64_t K, uint8_t* panel) {
  if constexpr (Layout<F>::kBits > 0) pack_quantized_panel<F>(rows, columns, K, panel);
  else if constexpr (F == WeightFormat::kF32) transpose_rows<Vector4u32>(rows, columns, K, panel);
  else transpose_rows<Vector8u16>(rows, columns, K, panel);
}

template <WeightFormat F>
void dequantize_column(const uint8_t* panel, int c, int64_t K, float* out) {
  using Math = ArithmeticOf<F>;
  PackedGroups<F> groups(panel);
  for (int64_t first = 0; first < K; first += kGroup, groups.next(), out += kGroup) {
    uint32_t q[8];
    read_column<Layout<F>::kBits>(groups.bytes(), c, q);
    float d[2][kPanelColumns], m[2][kPanelColumns];
    for (int s = 0; s < Math::kNumScales; s++) {
      store(d[s], groups.scale(0, s));
      if (Math::kHasMinimum) store(m[s], groups.minimum(0, s));
    }
    for (int k = 0; k < kGroup && first + k < K; k++) {
      const int value = groups.value_of((int)((q[k / 4] >> (8 * (k % 4))) & 255u)) - Math::kZeroPoint;
      const int s = k / 4 / Math::kLines;
      const float scaled = d[s][c] * (float)value;
      out[k] = Math::kHasMinimum ? scaled + m[s][c] : scaled;
    }
  }
}

template <WeightFormat F>
void read_float_column(const uint8_t* panel, int c, int64_t K, float* out) {
  for (int64_t k = 0; k < K; k++) {
    float column[kPanelColumns];
    store(column, FloatPanel<F>::at(panel + k * FloatPanel<F>::kBytes));
    out[k] = column[c];
  }
}

}  // namespace

bool is_quantized(WeightFormat format) { return format_info(format).bits > 0; }

int64_t source_row_bytes(WeightFormat format, int64_t K) {
  const FormatInfo info = format_info(format);
  return K % info.block_values == 0 ? K / info.block_values * info.block_bytes : -1;
}

int64_t panel_bytes(WeightFormat format, int64_t K) {
  int64_t bytes = kPanelColumns * K * format_info(format).block_bytes;
#define OCTAVO_CASE(F) \
  case WeightFormat::F: bytes = packed_groups_bytes<WeightFormat::F>(num_groups(K)); break;
  switch (packed_as(format)) {
    OCTAVO_INT8_CASES(OCTAVO_CASE)
    default: break;
  }
#undef OCTAVO_CASE
  return whole_lines(bytes);
}

void pack_panels(WeightFormat format, const uint8_t* const* rows, int64_t N, int64_t K, uint8_t* data, int64_t panel_begin,
                 int64_t panel_end) {
  const int64_t bytes = panel_bytes(format, K);
  for (int64_t p = panel_begin; p < panel_end; p++) {
    const int64_t first = p * kPanelColumns;
    const int columns = panel_columns(N, p);
    uint8_t* panel = data + p * bytes;
    if (columns < kPanelColumns) memset(panel, 0, (size_t)bytes);
#define OCTAVO_CASE(F) \
  case WeightFormat::F: pack_panel<WeightFormat::F>(rows + first, columns, K, panel); break;
    switch (format) {
      OCTAVO_FLOAT_CASES(OCTAVO_CASE)
      OCTAVO_QUANTIZED_CASES(OCTAVO_CASE)
      OCTAVO_OTHER_SOURCE_CASES(OCTAVO_CASE)
      case WeightFormat::kQ8_Top: break;  // no file has it
    }
#undef OCTAVO_CASE
  }
}

void dequantize_row(const PackedMatrix& w, int64_t n, float* out) {
  const uint8_t* panel = w.data + n / kPanelColumns * w.panel_bytes;
  const int c = (int)(n % kPanelColumns);
#define OCTAVO_FLOAT_CASE(F) \
  case WeightFormat::F: return read_float_column<WeightFormat::F>(panel, c, w.K, out);
#define OCTAVO_CASE(F) \
  case WeightFormat::F: return dequantize_column<WeightFormat::F>(panel, c, w.K, out);
  switch (w.format) {
    OCTAVO_FLOAT_CASES(OCTAVO_FLOAT_CASE)
    OCTAVO_QUANTIZED_CASES(OCTAVO_CASE)
    default: return;
  }
#undef OCTAVO_FLOAT_CASE
#undef OCTAVO_CASE
}

}  // namespace OCTAVO_NS
