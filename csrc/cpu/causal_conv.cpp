#include "causal_conv.h"

#include <algorithm>

#include "simd.h"

namespace OCTAVO_NS {

namespace {

constexpr int64_t kUnitChannels = 512;

int64_t units_per_request(const StateLayer& layer) { return (layer.conv_channels + kUnitChannels - 1) / kUnitChannels; }

// One request's inputs of some channels: row 0 is its first row of this step, rows before are in the slot.
struct Inputs {
  const float* rows;
  const float* conv;  // [width - 1, C]
  int64_t ldx, num_channels, num_before;

  const float* row(int64_t index) const { return index >= 0 ? rows + index * ldx : conv + (index + num_before) * num_channels; }

  // Copy the last inputs before `end`, in order: the target may be `conv` itself, whose later rows are read first.
  void copy_last(int64_t end, float* target, int64_t count) const {
    for (int64_t i = 0; i < num_before; i++) {
      const float* source = row(end - num_before + i);
      if (source != target + i * num_channels) memcpy(target + i * num_channels, source, (size_t)count * sizeof(float));
    }
  }
};

template <int kWidth>
OCTAVO_INLINE F32 convolve(const float* const* inputs, const float* weight, int64_t ldw, int width, int64_t i, int count) {
  const int taps = kWidth > 0 ? kWidth : width;
  F32 sum = mul(load_first(weight + i, count), load_first(inputs[0] + i, count));
  for (int tap = 1; tap < taps; tap++) sum = fma(load_first(weight + tap * ldw + i, count), load_first(inputs[tap] + i, count), sum);
  return sum;
}

template <int kWidth>
OCTAVO_INLINE F32 convolve(const float* const* inputs, const float* weight, int64_t ldw, int width, int64_t i) {
  const int taps = kWidth > 0 ? kWidth : width;
  F32 sum = mul(load(weight + i), load(inputs[0] + i));
  for (int tap = 1; tap < taps; tap++) sum = fma(load(weight + tap * ldw + i), load(inputs[tap] + i), sum);
  return sum;
}

// One row of `count` channels. kWidth 0: any width.
template <int kWidth>
void convolve_row(const float* const* inputs, const float* weight, int64_t ldw, int width, float* out, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const F32 sum = convolve<kWidth>(inputs, weight, ldw, width, i);
    store(out + i, mul(sum, sigmoid(sum)));
  }
  const int tail = (int)(count - i);
  if (tail > 0) {
    const F32 sum = convolve<kWidth>(inputs, weight, ldw, width, i, tail);
    store_first(out + i, mul(sum, sigmoid(sum)), tail);
  }
}

void convolve_rows(const CausalConvArgs& args, const Inputs& inputs, int64_t num_rows, int64_t channel, int64_t count, float* out) {
  const int width = args.layer.conv_width;
  const float* taps[kMaxConvWidth];
  for (int64_t row = 0; row < num_rows; row++) {
    for (int tap = 0; tap < width; tap++) taps[tap] = inputs.row(row - (width - 1) + tap);
    const auto convolve_one = width == 4 ? convolve_row<4> : convolve_row<0>;
    convolve_one(taps, args.weight + channel, args.layer.conv_channels, width, out + row * args.ldo, count);
  }
}

}  // namespace

int64_t causal_conv_units(const CausalConvArgs& args) { return args.requests.num_requests * units_per_request(args.layer); }

void causal_conv_unit(const CausalConvArgs& args, int64_t unit) {
  const StateLayer& layer = args.layer;
  const StateRequests& requests = args.requests;
  const int32_t request = (int32_t)(unit % requests.num_requests);  // so that a chunk of units has some of every request
  const int64_t channel = unit / requests.num_requests * kUnitChannels;
  const int64_t count = std::min(kUnitChannels, layer.conv_channels - channel);
  const int64_t begin = requests.query_start_loc[request], num_rows = requests.num_rows(request);
  const int32_t slot = requests.slot(request);
  float* conv = layer.conv(slot) + channel;
  const Inputs inputs = {args.x + begin * args.ldx + channel, conv, args.ldx, layer.conv_channels, layer.conv_width - 1};
  convolve_rows(args, inputs, num_rows, channel, count, args.out + begin * args.ldo + channel);

  const int32_t first = requests.first_position(request), end = requests.seq_lens[request];
  if (layer.keeps_border) {
    const int32_t last_border = end / kOpenChunk * kOpenChunk;
    for (int32_t border = first / kOpenChunk * kOpenChunk + kOpenChunk; border <= last_border; border += kOpenChunk) {
      if (border == last_border) inputs.copy_last(border - first, layer.border_conv(slot) + channel, count);
      const int32_t save = requests.save_slot(request, border);
      if (save >= 0) inputs.copy_last(border - first, layer.border_conv(save) + channel, count);
    }
  }
  inputs.copy_last(num_rows, conv, count);
}

}  // namespace OCTAVO_NS
