// The paged cache and attention as Python sees them: for tests and benchmarks; a program calls the kernels itself.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "bind_arrays.h"
#include "bind_names.h"
#include "bindings.h"
#include "cpu/attention.h"
#include "cpu/cache_line.h"

namespace nb = nanobind;

namespace OCTAVO_NS {

namespace {

using Pool = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

struct FreeScratch {
  void operator()(uint8_t* p) const { free(p); }
};

// Filled with NaN bits, so that nothing can depend on what scratch held before.
std::unique_ptr<uint8_t, FreeScratch> make_scratch(int64_t bytes) {
  std::unique_ptr<uint8_t, FreeScratch> scratch((uint8_t*)aligned_alloc(64, (size_t)whole_lines(bytes)));
  if (!scratch) fail("no memory for %lld bytes of scratch", (long long)bytes);
  memset(scratch.get(), 0xff, (size_t)bytes);
  return scratch;
}

CacheLayer cache_layer(const Pool& pool, int64_t layer_offset, int64_t block_size, int64_t num_kv_heads, int64_t head_dim,
                       const char* dtype_name) {
  const CacheDtype dtype = cache_dtype(dtype_name);
  check_range("head_dim", head_dim, kMinHeadDim, kMaxHeadDim);
  check_range("num_kv_heads", num_kv_heads, 1, 4096);
  check_range("block_size", block_size, kPieceTokens, 4096);
  if (block_size % kPieceTokens) fail("block_size must be a multiple of %d, got %lld", kPieceTokens, (long long)block_size);
  const int64_t bytes = layer_bytes(dtype, block_size, num_kv_heads, head_dim), block_bytes = (int64_t)pool.shape(1);
  if (layer_offset < 0 || layer_offset % 64 || block_bytes % 64 || bytes > block_bytes - layer_offset)
    fail("a layer of %lld bytes at layer_offset %lld does not fit a block of %lld bytes, both multiples of 64", (long long)bytes,
         (long long)layer_offset, (long long)block_bytes);
  return {pool.data(), block_bytes, layer_offset, (int32_t)block_size, (int32_t)num_kv_heads, (int32_t)head_dim, dtype};
}

int64_t write_cache(const Pool& pool, const Matrix<const float>& k, const Matrix<const float>& v, const Array<const int64_t, 1>& slots,
                    int64_t block_size, int64_t num_kv_heads, int64_t head_dim, const char* dtype, int64_t layer_offset) {
  const CacheLayer cache = cache_layer(pool, layer_offset, block_size, num_kv_heads, head_dim, dtype);
  const int64_t rows = (int64_t)slots.shape(0), columns = num_kv_heads * head_dim;
  const auto keys = rows_of("k", k, rows, columns), values = rows_of("v", v, rows, columns);
  check_values("slots", slots, 0, (int64_t)pool.shape(0) * block_size - 1);
  return kv_write(cache, keys.data, values.data, slots.data(), keys.stride, values.stride, 0, rows);
}

// Every position that some row sees must be in a block of the pool.
void check_requests(const AttentionArgs& args, int64_t num_tokens, int64_t num_blocks) {
  if (args.query_start_loc[0] != 0 || args.query_start_loc[args.num_requests] != num_tokens)
    fail("query_start_loc must begin with 0 and end with the rows of q, %lld", (long long)num_tokens);
  const int64_t block_size = args.cache.block_size;
  for (int32_t r = 0; r < args.num_requests; r++) {
    const int64_t count = (int64_t)args.query_start_loc[r + 1] - args.query_start_loc[r], length = args.seq_lens[r];
    if (count < 0) fail("query_start_loc must not decrease, got %lld tokens for request %d", (long long)count, r);
    check_range("seq_lens", length, count, std::min(args.block_table_stride * block_size, (int64_t)kMaxSeqLen));
    const int64_t first = length - count, visible = args.window > 0 && first >= args.window ? first - args.window + 1 : 0;
    for (int64_t block = visible / block_size; count > 0 && block * block_size < length; block++)
      check_range("block_tables", args.block_tables[r * args.block_table_stride + block], 0, num_blocks - 1);
  }
}

void check_order(const Array<const int64_t, 1>& order, int64_t num_units) {
  check_length("unit_order", order, num_units);
  std::vector<bool> seen((size_t)num_units);
  for (int64_t i = 0; i < num_units; i++) {
    check_range("unit_order", order.data()[i], 0, num_units - 1);
    if (seen[(size_t)order.data()[i]]) fail("unit_order holds %lld twice", (long long)order.data()[i]);
    seen[(size_t)order.data()[i]] = true;
  }
}

nb::tuple attend(const Matrix<const float>& q, const Matrix<float>& out, const Pool& pool, const Matrix<const int32_t>& block_tables,
                 const Array<const int32_t, 1>& query_start_loc, const Array<const int32_t, 1>& seq_lens, int64_t block_size,
                 int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, const char* dtype, float scale, float softcap,
                 int64_t window, int64_t layer_offset, int64_t num_threads, const std::optional<Array<const int64_t, 1>>& unit_order) {
  const CacheLayer cache = cache_layer(pool, layer_offset, block_size, num_kv_heads, head_dim, dtype);
  check_range("num_heads", num_heads, num_kv_heads, 4096);
  if (num_heads % num_kv_heads) fail("num_heads must be a multiple of num_kv_heads, got %lld", (long long)num_heads);
  const auto queries = rows_of("q", q, (int64_t)q.shape(0), num_heads * head_dim);
  const auto outputs = rows_of("out", out, queries.rows, queries.columns);
  const int64_t R = (int64_t)seq_lens.shape(0);
  check_range("requests", R, 0, INT32_MAX - 1);
  const auto tables = rows_of("block_tables", block_tables, R, (int64_t)block_tables.shape(1));
  check_length("query_start_loc", query_start_loc, R + 1);
  check_range("window", window, 0, INT32_MAX);
  check_range("num_threads", num_threads, 1, 4096);
  if (!(softcap >= 0.0f)) fail("softcap must be at least 0 (none), got %g", (double)softcap);
  const AttentionArgs args = {cache, queries.data, outputs.data, queries.stride, outputs.stride, (int32_t)num_heads, scale, softcap,
                              (int32_t)window, tables.data, tables.stride, query_start_loc.data(), seq_lens.data(), (int32_t)R};
  check_requests(args, queries.rows, (int64_t)pool.shape(0));

  int64_t longest = 0;
  for (int64_t r = 0; r < R; r++) longest = args.seq_lens[r] > longest ? args.seq_lens[r] : longest;
  const auto shared = make_scratch(attention_shared_scratch_bytes(R, args.num_heads, cache.num_kv_heads, cache.head_dim,
                                                                  longest, (int32_t)num_threads));
  const auto own = make_scratch(attention_thread_scratch_bytes(args.num_heads, cache.num_kv_heads, cache.head_dim));
  const AttentionPlan plan = attention_plan(args, (int32_t)num_threads, shared.get());
  if (unit_order) check_order(*unit_order, plan.num_units);
  if (unit_order) {
    for (int64_t i = 0; i < plan.num_units; i++) {
      const int64_t unit = unit_order->data()[i];
      attention_units(args, unit, unit + 1, shared.get(), own.get());
    }
  } else {
    attention_units(args, 0, plan.num_units, shared.get(), own.get());
  }
  for (int64_t i = 0; i < plan.num_folds; i++) attention_fold(args, i, shared.get());
  return nb::make_tuple(plan.num_units, plan.num_folds);
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.def("kv_write", &write_cache, nb::arg("pool").noconvert(), nb::arg("k").noconvert(), nb::arg("v").noconvert(),
        nb::arg("slots").noconvert(), nb::kw_only(), nb::arg("block_size"), nb::arg("num_kv_heads"), nb::arg("head_dim"),
        nb::arg("dtype"), nb::arg("layer_offset") = 0,
        "Write keys and values of each row to its slot. Returns how many values saturated.");
  m.def("paged_attention", &attend, nb::arg("q").noconvert(), nb::arg("out").noconvert(), nb::arg("pool").noconvert(),
        nb::arg("block_tables").noconvert(), nb::arg("query_start_loc").noconvert(), nb::arg("seq_lens").noconvert(), nb::kw_only(),
        nb::arg("block_size"), nb::arg("num_heads"), nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("dtype"),
        nb::arg("scale"), nb::arg("softcap") = 0.0f, nb::arg("window") = 0, nb::arg("layer_offset") = 0,
        nb::arg("num_threads") = 1, nb::arg("unit_order").noconvert() = nb::none(),
        "Causal attention over the cache, planned for `num_threads`, computed here in `unit_order`. Returns (units, folds).");
}

}  // namespace OCTAVO_NS
