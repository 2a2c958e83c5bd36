// Where recurrent layers keep what they remember of a request: slots of float32, laid out as cache_spec.StateGroupSpec says.
#pragma once

#include <cstdint>

#include "isa.h"

namespace OCTAVO_NS {

constexpr int kOpenChunk = 16;   // tokens after which open rows are folded into the state, at absolute multiples of it
constexpr int kStateLanes = 16;  // value dims that lie side by side in a state
constexpr int kMaxStateHeadDim = 512, kMaxConvWidth = 16;

// One layer of a group of recurrent layers. Slot s starts at pool + s * slot_floats; in it this layer starts at layer_offset.
struct StateLayer {
  float* pool;
  int64_t slot_floats, layer_offset;
  int32_t num_key_heads, num_value_heads, key_dim, value_dim, conv_width, conv_channels;
  bool keeps_border;

  int64_t padded_value_dim() const { return (value_dim + kStateLanes - 1) / kStateLanes * kStateLanes; }
  int64_t head_floats() const { return key_dim * padded_value_dim(); }
  int64_t conv_floats() const { return (int64_t)(conv_width - 1) * conv_channels; }
  int64_t border_floats() const { return keeps_border ? conv_floats() : 0; }
  int64_t open_floats() const {
    return kOpenChunk * ((int64_t)num_key_heads * key_dim + num_value_heads * (padded_value_dim() + 1));
  }
  int64_t layer_floats() const { return num_value_heads * head_floats() + border_floats() + conv_floats() + open_floats(); }

  float* state(int64_t slot) const { return pool + slot * slot_floats + layer_offset; }  // [HV, panels, key_dim, kStateLanes]
  float* border_conv(int64_t slot) const { return state(slot) + num_value_heads * head_floats(); }  // [conv_width - 1, channels]
  float* conv(int64_t slot) const { return border_conv(slot) + border_floats(); }        // [conv_width - 1, channels]
  float* open_keys(int64_t slot) const { return conv(slot) + conv_floats(); }            // [HK, key_dim, kOpenChunk]
  float* open_updates(int64_t slot) const {                                              // [HV, kOpenChunk, padded_value_dim]
    return open_keys(slot) + (int64_t)num_key_heads * key_dim * kOpenChunk;
  }
  float* open_decay(int64_t slot) const {                                                // [HV, kOpenChunk]
    return open_updates(slot) + num_value_heads * kOpenChunk * padded_value_dim();
  }
};

// A snapshot to leave while rows run: a row of the step's `state_saves`.
struct StateSave {
  int32_t request, group, position, slot;
};

// The requests of a step, as the layers of one group see them.
struct StateRequests {
  const int32_t* slots;  // [R]  slot_stride apart
  int64_t slot_stride;
  const int32_t* query_start_loc;  // [R + 1]
  const int32_t* seq_lens;         // [R]  tokens including this step's
  const StateSave* saves;          // [num_saves]  of all groups
  int64_t num_saves;
  int32_t num_requests, group;

  int32_t slot(int32_t request) const { return slots[request * slot_stride]; }
  int32_t num_rows(int32_t request) const { return query_start_loc[request + 1] - query_start_loc[request]; }
  int32_t first_position(int32_t request) const { return seq_lens[request] - num_rows(request); }
  // The slot that is to keep what there is after `position` tokens of a request, or -1.
  int32_t save_slot(int32_t request, int32_t position) const {
    for (int64_t i = 0; i < num_saves; i++) {
      const StateSave& save = saves[i];
      if (save.request == request && save.group == group && save.position == position) return save.slot;
    }
    return -1;
  }
};

}  // namespace OCTAVO_NS
