// Computing the units of an attention call, and folding the segments of split decodes.
#include "attention.h"

#include "attention_plan.h"
#include "attention_tile.h"
#include "simd.h"

namespace OCTAVO_NS {

namespace {

constexpr float kLog2E = 1.44269504f;

// Softmax over some segments: max and sum of exp2(score - max) per row, and that sum with values.
struct Softmax {
  float* max;    // [rows]
  float* total;  // [rows]
  float* acc;    // [rows, chunks * 16]
};

// The rows of one unit, in per-thread scratch. Row t * group_size + g: token t, head g of the group.
struct UnitRows {
  int32_t count;
  float* q;           // tiles of next_tile_rows rows, each [head_dim, rows], scaled
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
    bytes += (values * 4 + 63) / 64 * 64;
    return p;
  };
  const int64_t acc_floats = count * num_value_chunks(head_dim) * 16;
  rows->q = take(count * head_dim);
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
      for (int64_t d = 0; d < D; d++) rows.q[row * D + d * size + r] = q[d] * factor;
      rows.first[row + r] = first_visible(work.position + token, args.window);
      rows.last[row + r] = work.position + token;
    }
  }
  return rows;
}

const void* piece_address(const AttentionArgs& args, int32_t request, int32_t kv_head, int32_t position) {
  const CacheLayer& cache = args.cache;
  const int64_t element = cache.dtype == CacheDtype::kF32 ? 4 : 2;
  const int64_t block = args.block_tables[request * args.block_table_stride + position / cache.block_size];
  const int64_t piece = (int64_t)(position % cache.block_size / kTileTokens) * cache.num_kv_heads + kv_head;
  return cache.pool + block * cache.block_bytes + cache.layer_offset + piece * 2 * kTileTokens * cache.head_dim * element;
}

// The tile at `position`, and the one to prefetch: pieces that hold positions first .. last, of which some row sees one.
KeyTile key_tile(const AttentionArgs& args, const UnitWork& work, int32_t position, int32_t first, int32_t last) {
  KeyTile tile = {position, {}, {}, args.cache.head_dim, args.softcap * kLog2E};
  const bool more = position + kTileKeys <= last;
  for (int b = 0; b < kPieces; b++) {
    const int32_t key = position + b * kTileTokens, next = key + kTileKeys;
    if (key + kTileTokens > first && key <= last) tile.piece[b] = piece_address(args, work.request, work.kv_head, key);
    if (more) tile.next[b] = piece_address(args, work.request, work.kv_head, next < last ? next : last);
  }
  return tile;
}

// One segment of absolute positions, from nothing.
void attend_segment(const AttentionArgs& args, const UnitWork& work, const UnitRows& rows, int32_t segment, const Softmax& result) {
  const int64_t D = args.cache.head_dim, acc_floats = num_value_chunks(D) * 16;
  for (int32_t r = 0; r < rows.count; r++) result.max[r] = -__builtin_inff();
  memset(rows.lane_sums, 0, (size_t)rows.count * kLanes * 4);
  memset(result.acc, 0, (size_t)(rows.count * acc_floats) * 4);

  const int32_t begin = segment * kSegmentTokens, end = begin + kSegmentTokens;
  const int32_t first = rows.first[0] > begin ? rows.first[0] : begin;
  const int32_t last = rows.last[rows.count - 1] < end ? rows.last[rows.count - 1] : end - 1;
  for (int32_t position = first / kTileKeys * kTileKeys; position <= last; position += kTileKeys) {
    KeyTile tile = key_tile(args, work, position, rows.first[0], rows.last[rows.count - 1]);
    for (int32_t row = 0, size; row < rows.count; row += size) {
      size = next_tile_rows(rows.count - row);
      const RowState state = {result.max + row, rows.lane_sums + row * kLanes, result.acc + row * acc_floats};
      tile_kernel(args.cache.dtype, size)({rows.q + row * D, rows.first + row, rows.last + row, state}, tile);
      for (const void*& next : tile.next) next = nullptr;
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

void write_row(float* out, float total, const float* acc, int64_t head_dim) {
  const F32 factor = div(set1(1.0f), set1(total));
  for (int64_t c = 0; c < num_value_chunks(head_dim); c++) store(out + value_column(c, head_dim), mul(load(acc + 16 * c), factor));
}

void attend_all(const AttentionArgs& args, const UnitWork& work, const UnitRows& rows) {
  const int64_t D = args.cache.head_dim, acc_floats = num_value_chunks(D) * 16;
  const int32_t first = rows.first[0] / kSegmentTokens, last = rows.last[rows.count - 1] / kSegmentTokens;
  attend_segment(args, work, rows, first, rows.all);
  for (int32_t segment = first + 1; segment <= last; segment++) {
    attend_segment(args, work, rows, segment, rows.part);
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
    write_row(args.out + token * args.ldo + head * D, rows.all.total[r], rows.all.acc + r * acc_floats, D);
  }
}

}  // namespace

int64_t attention_thread_scratch_bytes(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim) {
  UnitRows rows;
  return lay_out(&rows, unit_rows(num_heads, num_kv_heads), head_dim, nullptr);
}

void attention_unit(const AttentionArgs& args, int64_t unit, uint8_t* shared_scratch, uint8_t* thread_scratch) {
  const UnitWork work = find_unit(args, (const RequestPlan*)shared_scratch, unit);
  UnitRows rows = load_rows(args, work, thread_scratch);
  if (!work.partial) return attend_all(args, work, rows);
  rows.part = softmax_at(work.partial, rows.count);
  attend_segment(args, work, rows, work.segment, rows.part);
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
  for (int32_t g = 0; g < group_size; g++) {
    float* out = args.out + args.query_start_loc[request] * args.ldo + (kv_head * group_size + g) * D;
    write_row(out, all.total[g], all.acc + g * acc_floats, D);
  }
}

}  // namespace OCTAVO_NS
