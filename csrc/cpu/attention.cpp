// Computing the units of an attention call, and folding the segments of split decodes.
#include "attention.h"

#include <algorithm>

#include "attention_plan.h"
#include "attention_tile.h"
#include "cache_line.h"
#include "hadamard.h"
#include "simd.h"

namespace OCTAVO_NS {

namespace {

// Softmax over some segments: max and sum of exp2(score - max) per row, and that sum with values.
struct Softmax {
  float* max;    // [rows]
  float* total;  // [rows]
  float* acc;    // [rows, chunks * 16]
};

// The rows of one unit, in per-thread scratch. Row t * group_size + g: token t, head g of the group.
struct UnitRows {
  int32_t count;
  float* q;           // tiles of next_tile_rows rows, each [head_dim, rows], scaled; of int8 caches int16, see quantize_query
  float* q_scale;     // [count]  of int8 caches
  int32_t *first, *last;  // [count]  first and last position that a row sees
  float* lane_sums;   // [count, 16]
  Softmax all, part;  // the segments so far; one segment
};

Softmax softmax_at(float* partial, int32_t group_size) {
  return {partial, partial + group_size, partial + partial_acc_offset(group_size)};
}

int32_t unit_rows(int32_t num_heads, int32_t num_kv_heads) {
  const int32_t group_size = num_heads / num_kv_heads;
  return group_size * tokens_per_unit(group_size);
}

// Lays out `rows` in scratch at `base` (null: only measures). Returns the bytes.
int64_t lay_out(UnitRows* rows, int64_t count, int64_t head_dim, uint8_t* base) {
  int64_t bytes = 0;
  const auto take = [&](int64_t values) {
    float* p = (float*)((uintptr_t)base + (uintptr_t)bytes);
    bytes += whole_lines(values * 4);
    return p;
  };
  const int64_t acc_floats = count * num_value_chunks(head_dim) * 16;
  rows->q = take(count * head_dim);
  rows->q_scale = take(count);
  rows->first = (int32_t*)take(count);
  rows->last = (int32_t*)take(count);
  rows->lane_sums = take(count * kLanes);
  rows->all = {take(count), take(count), take(acc_floats)};
  rows->part = {take(count), take(count), take(acc_floats)};
  return bytes;
}

UnitRows load_rows(const AttentionArgs& args, const UnitWork& work, uint8_t* thread_scratch) {
  const int64_t D = args.cache.head_dim;
  const int32_t group_size = args.num_heads / args.cache.num_kv_heads;
  const float factor = args.softcap > 0.0f ? args.scale / args.softcap : args.scale * kLog2E;
  UnitRows rows;
  lay_out(&rows, unit_rows(args.num_heads, args.cache.num_kv_heads), D, thread_scratch);
  rows.count = work.num_tokens * group_size;
  for (int32_t row = 0, size; row < rows.count; row += size) {
    size = next_tile_rows(rows.count - row);
    for (int32_t r = 0; r < size; r++) {
      const int32_t token = (row + r) / group_size, head = work.kv_head * group_size + (row + r) % group_size;
      const float* q = args.q + (work.token_begin + token) * args.ldq + head * D;
      if (args.cache.dtype == CacheDtype::kI8)
        quantize_query(q, factor, (int32_t)D, size, (int16_t*)(rows.q + row * D) + 2 * r, rows.q_scale + row + r);
      else
        for (int64_t d = 0; d < D; d++) rows.q[row * D + d * size + r] = q[d] * factor;
      rows.first[row + r] = first_visible(work.position + token, args.window);
      rows.last[row + r] = work.position + token;
    }
  }
  return rows;
}

const uint8_t* piece_address(const AttentionArgs& args, const UnitWork& work, int32_t position) {
  const CacheLayer& cache = args.cache;
  const int64_t block = args.block_tables[work.request * args.block_table_stride + position / cache.block_size];
  const int64_t piece = (int64_t)(position % cache.block_size / kPieceTokens) * cache.num_kv_heads + work.kv_head;
  return cache.pool + block * cache.block_bytes + cache.layer_offset + piece * piece_bytes(cache.dtype, cache.head_dim);
}

// The tile at `position`. `following` is the unit after this one, or null.
KeyTile key_tile(const AttentionArgs& args, const UnitWork& work, const UnitWork* following, int32_t position) {
  KeyTile tile = {position, {}, {}, args.cache.head_dim, args.softcap * kLog2E};
  const bool is_last = position + kTileKeys > work.last_key;
  const UnitWork& next = is_last && following ? *following : work;
  const int32_t next_position = !is_last ? position + kTileKeys : following ? following->first_key / kTileKeys * kTileKeys : position;
  for (int b = 0; b < kPieces; b++) {
    const int32_t key = position + b * kPieceTokens, next_key = next_position + b * kPieceTokens;
    if (key + kPieceTokens > work.first_key && key <= work.last_key) tile.piece[b] = piece_address(args, work, key);
    tile.next[b] = piece_address(args, next, std::clamp(next_key, next.first_key, next.last_key));
  }
  return tile;
}

// One segment of absolute positions, from nothing.
void attend_segment(const AttentionArgs& args, const UnitWork& work, const UnitWork* following, const UnitRows& rows, int32_t segment,
                    const Softmax& result) {
  const int64_t D = args.cache.head_dim, acc_floats = num_value_chunks(D) * 16;
  for (int32_t r = 0; r < rows.count; r++) result.max[r] = -__builtin_inff();
  memset(rows.lane_sums, 0, (size_t)rows.count * kLanes * 4);
  memset(result.acc, 0, (size_t)(rows.count * acc_floats) * 4);

  const int32_t begin = segment * kSegmentTokens, end = begin + kSegmentTokens;
  const int32_t first = std::max(work.first_key, begin), last = std::min(work.last_key, end - 1);
  for (int32_t position = first / kTileKeys * kTileKeys; position <= last; position += kTileKeys) {
    const KeyTile tile = key_tile(args, work, following, position);
    for (int32_t row = 0, size; row < rows.count; row += size) {
      size = next_tile_rows(rows.count - row);
      const RowState state = {result.max + row, rows.lane_sums + row * kLanes, result.acc + row * acc_floats};
      tile_kernel(args.cache.dtype, size)({rows.q + row * D, rows.q_scale + row, rows.first + row, rows.last + row, state}, tile);
    }
  }
  for (int32_t r = 0; r < rows.count; r++) result.total[r] = reduce_add(load(rows.lane_sums + r * kLanes));
}

// Fold one row of a later segment into the segments before it.
void fold_row(float* max, float* total, float* acc, float part_max, float part_total, const float* part_acc, int64_t acc_floats) {
  const float top = part_max > *max ? part_max : *max;
  const F32 keep = exp2(set1(*max - top)), join = exp2(set1(part_max - top));
  *max = top;
  *total = first_lane(fma(set1(*total), keep, mul(set1(part_total), join)));
  for (int64_t i = 0; i < acc_floats; i += kLanes) store(acc + i, fma(load(acc + i), keep, mul(load(part_acc + i), join)));
}

// The output of `head` for one row of q.
void write_row(const AttentionArgs& args, int64_t row, int64_t head, float total, const float* acc) {
  const int64_t D = args.cache.head_dim;
  const bool is_rotated = args.cache.dtype == CacheDtype::kI8;
  float* out = args.out + row * args.ldo + head * D;
  const F32 factor = div(set1(is_rotated ? 1.0f / (float)hadamard_block(D) : 1.0f), set1(total));
  alignas(64) float rotated[kMaxHeadDim];
  float* to = is_rotated ? rotated : out;
  for (int64_t c = 0; c < num_value_chunks(D); c++) store(to + value_column(c, D), mul(load(acc + 16 * c), factor));
  if (!is_rotated) return;
  hadamard(rotated, D);
  memcpy(out, rotated, (size_t)D * sizeof(float));
}

void attend_all(const AttentionArgs& args, const UnitWork& work, const UnitWork* following, const UnitRows& rows) {
  const int64_t D = args.cache.head_dim, acc_floats = num_value_chunks(D) * 16;
  const int32_t first = work.first_key / kSegmentTokens, last = work.last_key / kSegmentTokens;
  attend_segment(args, work, following, rows, first, rows.all);
  for (int32_t segment = first + 1; segment <= last; segment++) {
    attend_segment(args, work, following, rows, segment, rows.part);
    for (int32_t r = 0; r < rows.count; r++) {
      float *max = rows.all.max + r, *total = rows.all.total + r, *acc = rows.all.acc + r * acc_floats;
      const float* part_acc = rows.part.acc + r * acc_floats;
      if (rows.first[r] / kSegmentTokens < segment) {
        fold_row(max, total, acc, rows.part.max[r], rows.part.total[r], part_acc, acc_floats);
      } else {  // this row's window begins here
        *max = rows.part.max[r];
        *total = rows.part.total[r];
        memcpy(acc, part_acc, (size_t)acc_floats * 4);
      }
    }
  }
  const int32_t group_size = args.num_heads / args.cache.num_kv_heads;
  for (int32_t r = 0; r < rows.count; r++) {
    const int32_t token = work.token_begin + r / group_size, head = work.kv_head * group_size + r % group_size;
    write_row(args, token, head, rows.all.total[r], rows.all.acc + r * acc_floats);
  }
}

void attend_unit(const AttentionArgs& args, const UnitWork& work, const UnitWork* following, uint8_t* thread_scratch) {
  UnitRows rows = load_rows(args, work, thread_scratch);
  if (!work.partial) return attend_all(args, work, following, rows);
  rows.part = softmax_at(work.partial, rows.count);
  attend_segment(args, work, following, rows, work.first_key / kSegmentTokens, rows.part);
}

}  // namespace

int64_t attention_thread_scratch_bytes(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim) {
  UnitRows rows;
  return lay_out(&rows, unit_rows(num_heads, num_kv_heads), head_dim, nullptr);
}

void attention_units(const AttentionArgs& args, int64_t unit_begin, int64_t unit_end, uint8_t* shared_scratch, uint8_t* thread_scratch) {
  const RequestPlan* plan = (const RequestPlan*)shared_scratch;
  UnitWork following = find_unit(args, plan, unit_begin);
  for (int64_t unit = unit_begin; unit < unit_end; unit++) {
    const UnitWork work = following;
    const bool is_last = unit + 1 == unit_end;
    if (!is_last) following = find_unit(args, plan, unit + 1);
    attend_unit(args, work, is_last ? nullptr : &following, thread_scratch);
  }
}

void attention_fold(const AttentionArgs& args, int64_t fold, uint8_t* shared_scratch) {
  const RequestPlan* plan = (const RequestPlan*)shared_scratch;
  int32_t request = 0;
  while (plan[request + 1].fold_begin <= fold) request++;
  const int64_t kv_head = fold - plan[request].fold_begin, KVH = args.cache.num_kv_heads, D = args.cache.head_dim;
  const int32_t group_size = args.num_heads / (int32_t)KVH;
  const int64_t floats = partial_floats(group_size, (int32_t)D), acc_floats = num_value_chunks(D) * 16;
  const int64_t segments = (plan[request + 1].unit_begin - plan[request].unit_begin) / KVH;
  float* first = plan[request].partials + kv_head * floats;
  const Softmax all = softmax_at(first, group_size);
  for (int64_t s = 1; s < segments; s++) {
    const Softmax part = softmax_at(first + s * KVH * floats, group_size);
    for (int32_t g = 0; g < group_size; g++)
      fold_row(all.max + g, all.total + g, all.acc + g * acc_floats, part.max[g], part.total[g], part.acc + g * acc_floats, acc_floats);
  }
  for (int32_t g = 0; g < group_size; g++)
    write_row(args, args.query_start_loc[request], kv_head * group_size + g, all.total[g], all.acc + g * acc_floats);
}

}  // namespace OCTAVO_NS
