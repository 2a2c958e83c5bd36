// Reads the packed groups of a quantised format: unsigned lines of 16 columns x 4 k, float scales and minimums.
#pragma once

#include "gemm_dot.h"
#include "gemm_tiles.h"
#include "pack_layout.h"
#include "simd.h"

namespace OCTAVO_NS {

// Arithmetic of a format; formats that differ in their scales' storage only (Q4_1, Q4_K) share it, and the expanded kernels.
template <int kBits_, bool kHasMinimum_, int kZeroPoint_, int kNumScales_>
struct Arithmetic {
  static constexpr int kBits = kBits_;
  static constexpr bool kHasMinimum = kHasMinimum_;
  static constexpr int kZeroPoint = kZeroPoint_;
  static constexpr int kNumScales = kNumScales_;
  static constexpr int kLines = 8 / kNumScales;  // per scale
  static constexpr bool kTwoStarts = kZeroPoint == 32 && kLines == 8;  // one for each half of a sum

  // What the integer sum of values under scale `s` starts with, or null for 0. With kTwoStarts, the next one is that of the second half.
  OCTAVO_INLINE const SumStart* start(const ActBlock& x, int s) {
    if constexpr (kZeroPoint == 8) return &x.start_zp8;
    if constexpr (kZeroPoint == 16) return &x.start_zp16;
    if constexpr (kZeroPoint == 32) return &x.start_zp32[s];
    if constexpr (kZeroPoint == 128) return &x.start_zp128;
    return nullptr;
  }

  // What the minimum that goes with scale `s` is multiplied with: the scale times the sum of its activations.
  OCTAVO_INLINE float scale_sum(const ActBlock& x, int s) {
    if constexpr (kNumScales == 1) return x.scale_sum;
    else return x.scale * (float)half_sum(x, s);
  }
};

template <WeightFormat F>
using ArithmeticOf = Arithmetic<Layout<F>::kValueBits, Layout<F>::kHasMinimum || F == WeightFormat::kQ8_Top,
                                Layout<F>::kInfo.zero_point, Layout<F>::kInfo.num_scales>;

// A walk over the groups of one panel. It fetches kPrefetchBytes ahead; or, where two walks pass over each panel, to L2, from `ahead` on,
// kAheadBytes for each group: half of what comes next.
template <WeightFormat F>
class PackedGroups {
  using L = Layout<F>;

 public:
  using Math = ArithmeticOf<F>;
  static constexpr int kPanels = 1;
  static constexpr int kAheadBytes = (L::kGroupBytes / kLineBytes + 2) / 2 * kLineBytes;

  explicit PackedGroups(const uint8_t* panel, const uint8_t* ahead = nullptr) : group_(panel), ahead_(ahead) { enter(); }

  OCTAVO_MEMBER Line line(int, int j) const {
    if constexpr (L::kBits == 8) {
      return load_line(group_ + kLineBytes * j);
    } else if constexpr (L::kBits < 4) {
      const Line pairs = load_line(group_ + kLineBytes * (j >> 2));
      if constexpr (L::kBits == 2) return or_shifted<0x03>(no_bits(), pairs, -2 * (j & 3));
      const Line q = or_shifted<0x18>(no_bits(), pairs, kThreeBitShift - 2 * (j & 3));
      return or_shifted<0x20>(q, load_line(group_ + L::kHighPlane), kThreeBitShift + 2 - j);
    } else {
      const Line packed = load_line(group_ + kLineBytes * (j & 3));
      const Line q = j < 4 ? low_nibbles(packed) : high_nibbles(packed);
      if constexpr (L::kInfo.table) return look_up(load_line(header_), q);
      if constexpr (L::kBits == 5) return or_shifted<0x10>(q, load_line(group_ + L::kHighPlane), 4 - j);
      if constexpr (L::kBits == 6) {
        return or_shifted<0x30>(q, load_line(group_ + L::kHighPlane + kLineBytes * (j >> 2)), 4 - 2 * (j & 3));
      }
      return q;
    }
  }
  OCTAVO_MEMBER Factor<Math::kBits> factor(int n, int j) const { return kept_factor<Math::kBits>(to_kept<Math::kBits>(line(n, j))); }
  OCTAVO_MEMBER F32 scale(int, int s) const {
    const uint8_t* p = group_ + L::kScales;
    if constexpr (L::kInfo.table) {
      return load((const float*)p);
    } else if constexpr (F == WeightFormat::kQ8_Top) {
      return mul(load_f16((const uint16_t*)p), set1(4.0f));
    } else if constexpr (F == WeightFormat::kQ2_K) {
      return mul(load_low_nibbles(p + kPanelColumns * s), load_f16((const uint16_t*)header_));
    } else if constexpr (L::kInfo.num_scales == 2) {
      const F32 d = mul(load_i8((const int8_t*)p + kPanelColumns * s), load_f16((const uint16_t*)header_));
      return L::kBits == 3 ? mul(d, set1(1.0f / (1 << kThreeBitShift))) : d;
    } else if constexpr (L::kInfo.sub_scales) {
      return mul(load_u8(p), load_f16((const uint16_t*)header_));
    } else {
      return load_f16((const uint16_t*)p);
    }
  }
  OCTAVO_MEMBER F32 minimum(int, int s) const {
    const uint8_t* p = group_ + L::kMinimums;
    if constexpr (F == WeightFormat::kQ2_K) {
      return mul(load_high_nibbles(group_ + L::kScales + kPanelColumns * s), load_f16((const uint16_t*)header_ + kPanelColumns));
    }
    if constexpr (F == WeightFormat::kQ8_Top) return mul(load_f16((const uint16_t*)(group_ + L::kScales)), set1(1.5f));
    if constexpr (F == WeightFormat::kQ4_Z) return mul(load_f16((const uint16_t*)p), scale(0, 0));
    if constexpr (L::kInfo.sub_scales) return mul(load_u8(p), load_f16((const uint16_t*)header_ + kPanelColumns));
    else return load_f16((const uint16_t*)p);
  }
  OCTAVO_MEMBER void prefetch_ahead() const {
    if (ahead_) {
      for (int i = 0; i < kAheadBytes; i += kLineBytes) prefetch_l2(ahead_ + i);
    } else {
      for (int i = 0; i < L::kGroupBytes; i += kLineBytes) prefetch(group_ + kPrefetchBytes + i);
    }
  }
  OCTAVO_MEMBER void next() {
    if (ahead_) ahead_ += kAheadBytes;
    group_ += L::kGroupBytes;
    enter();
  }
  const uint8_t* bytes() const { return group_; }
  // What a line has for these bits of a value.
  int value_of(int bits) const { return L::kInfo.table ? header_[bits] : L::kBits == 3 ? bits << kThreeBitShift : bits; }

 private:
  // Three bits are multiplied as six, w * 8 + 32, under an eighth of their scale: powers of two change no rounding, and the kernels
  // of Q6_K serve.
  static constexpr int kThreeBitShift = 3;

  OCTAVO_MEMBER void enter() {
    if constexpr (L::kHeaderBytes > 0) {
      if (index_++ % kGroupsPerSuper == 0) {
        header_ = group_;
        group_ += L::kHeaderBytes;
      }
    }
  }

  const uint8_t *group_, *ahead_;
  const uint8_t* header_ = nullptr;
  unsigned index_ = 0;
};

// A walk over groups of `NB` panels that were expanded to whole bytes and float scales: 8 lines per panel, then the scales.
// Meanwhile it fetches to L2 what is expanded next: kAheadBytes for each group, from `ahead` on.
template <class Math_, int NB>
class ExpandedGroups {
 public:
  using Math = Math_;
  static constexpr int kPanels = NB;
  static constexpr int kScales = 8 * kLineBytes * NB;
  static constexpr int kMinimums = kScales + Math::kNumScales * kLineBytes * NB;
  static constexpr int kGroupBytes = kMinimums + (Math::kHasMinimum ? Math::kNumScales * kLineBytes * NB : 0);
  static constexpr int kAheadBytes = 2 * kLineBytes * NB;

  ExpandedGroups(const uint8_t* scratch, const uint8_t* ahead) : group_(scratch), ahead_(ahead) {}

  OCTAVO_MEMBER Factor<Math::kBits> factor(int n, int j) const {
    return kept_factor<Math::kBits>(load_line(group_ + kLineBytes * (j * NB + n)));
  }
  OCTAVO_MEMBER F32 scale(int n, int s) const { return load((const float*)(group_ + kScales + kLineBytes * (s * NB + n))); }
  OCTAVO_MEMBER F32 minimum(int n, int s) const { return load((const float*)(group_ + kMinimums + kLineBytes * (s * NB + n))); }
  OCTAVO_MEMBER void prefetch_ahead() const {
    for (int i = 0; i < kAheadBytes; i += kLineBytes) prefetch_l2(ahead_ + i);
  }
  OCTAVO_MEMBER void next() {
    group_ += kGroupBytes;
    ahead_ += kAheadBytes;
  }

 private:
  const uint8_t *group_, *ahead_;
};

// Expand `NB` neighbouring panels to the form ExpandedGroups walks over.
template <WeightFormat F, int NB>
void expand_panels(const uint8_t* panels, int64_t panel_bytes, int64_t num_groups, uint8_t* scratch) {
  using Math = ArithmeticOf<F>;
  using Out = ExpandedGroups<Math, NB>;
  for (int n = 0; n < NB; n++) {
    PackedGroups<F> groups(panels + n * panel_bytes);
    uint8_t* out = scratch;
    for (int64_t g = 0; g < num_groups; g++, out += Out::kGroupBytes, groups.next()) {
      groups.prefetch_ahead();
#pragma GCC unroll 8
      for (int j = 0; j < 8; j++) store_line(out + kLineBytes * (j * NB + n), to_kept<Math::kBits>(groups.line(0, j)));
      for (int s = 0; s < Math::kNumScales; s++) {
        store((float*)(out + Out::kScales + kLineBytes * (s * NB + n)), groups.scale(0, s));
        if (Math::kHasMinimum) store((float*)(out + Out::kMinimums + kLineBytes * (s * NB + n)), groups.minimum(0, s));
      }
    }
  }
}

}  // namespace OCTAVO_NS
