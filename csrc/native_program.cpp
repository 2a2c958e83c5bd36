#include "native_program.h"

#include <algorithm>

#include "bind_names.h"
#include "cpu/cache_line.h"
#include "packed_matrix.h"

namespace OCTAVO_NS {

namespace {

constexpr int64_t kMaxHeads = 1 << 16;

int64_t thread_scratch_bytes(const RowStage& stage) { return stage.scratch_floats * (int64_t)sizeof(float); }
int64_t thread_scratch_bytes(const GemmStage& stage) { return unit_scratch_bytes(stage); }
int64_t thread_scratch_bytes(const GatedGemmStage& stage) { return unit_scratch_bytes(stage); }
int64_t thread_scratch_bytes(const MoeSortStage&) { return 0; }
int64_t thread_scratch_bytes(const MoeGemmStage& stage) {
  int64_t bytes = 0;
  for (const GemmStage& expert : stage.experts) bytes = std::max(bytes, unit_scratch_bytes(expert));
  return bytes;
}
int64_t thread_scratch_bytes(const AttentionStage& stage) {
  return attention_thread_scratch_bytes(stage.num_heads, stage.cache.num_kv_heads, stage.cache.head_dim);
}

int64_t thread_scratch_bytes(const CausalConvStage&) { return 0; }
int64_t thread_scratch_bytes(const GatedDeltaStage& stage) { return gated_delta_scratch_bytes(stage.layer); }

template <class S>
int64_t shared_scratch_bytes(const S&, const ProgramSizes&) { return 0; }
int64_t shared_scratch_bytes(const AttentionStage& stage, const ProgramSizes& sizes) {
  return attention_shared_scratch_bytes(sizes.max_num_seqs, stage.num_heads, stage.cache.num_kv_heads,
                                        stage.cache.head_dim, sizes.max_model_len, sizes.num_threads);
}

// The matrix of a head whose logits can be estimated: one of 8 bits that gives them by itself, from int8 activations. Or null.
const PackedMatrix* screenable_weight(const EntryPoint& head) {
  const GemmStage* product = head.stages.empty() ? nullptr : std::get_if<GemmStage>(&head.stages.back());
  if (!product || product->add || product->segments.size() != 1) return nullptr;
  const auto& [weight, column, bias, int8] = product->segments[0];
  const bool is_whole = column == 0 && weight.N == head.width && product->y.data == head.result.data;
  return is_whole && int8 && !bias && weight.format == WeightFormat::kQ8_0 ? &weight : nullptr;
}

}  // namespace

NativeProgram::NativeProgram(const ProgramSizes& sizes) : sizes_(sizes) {
  check_range("num_threads", sizes.num_threads, 1, ThreadPool::kMaxThreads);
  check_range("arena_bytes", sizes.arena_bytes, 64, int64_t(1) << 46);
  check_range("max_num_tokens", sizes.max_num_tokens, 1, INT32_MAX - 1);
  check_range("max_num_seqs", sizes.max_num_seqs, 1, INT32_MAX - 1);
  check_range("max_model_len", sizes.max_model_len, 1, kMaxSeqLen);
  limits_ = {sizes.max_num_tokens, sizes.max_num_seqs, sizes.max_model_len, INT32_MAX, {}};
  executor_ = std::make_unique<Executor>(sizes.num_threads, sizes.arena_bytes);
}

void NativeProgram::add_group(Array<uint8_t, 1> pool, int32_t num_layers, int32_t num_kv_heads, int32_t head_dim, int32_t block_size,
                              const char* dtype_name) {
  check_open();
  // Together these keep the bytes of a block below 2^55.
  check_range("num_layers", num_layers, 1, 1 << 16);
  check_range("num_kv_heads", num_kv_heads, 1, kMaxHeads);
  check_range("head_dim", head_dim, kMinHeadDim, kMaxHeadDim);
  check_range("block_size", block_size, kPieceTokens, 4096);
  if (block_size % kPieceTokens) fail("block_size must be a multiple of 16");
  if ((uintptr_t)pool.data() % sizeof(float)) fail("a cache pool must be aligned to 4 bytes");
  const CacheDtype dtype = cache_dtype(dtype_name);
  const int64_t bytes = layer_bytes(dtype, block_size, num_kv_heads, head_dim);
  const CacheLayer first = {pool.data(), bytes * num_layers, 0, block_size, num_kv_heads, head_dim, dtype};
  const int64_t num_blocks = (int64_t)pool.size() / first.block_bytes;
  check_range("blocks of a cache pool", num_blocks, 1, INT32_MAX - 1);
  groups_.push_back({first, bytes, num_layers});
  limits_.groups.push_back({num_blocks, block_size, 0});
  kept_.push_back(nb::cast(pool));
}

void NativeProgram::add_state_group(Array<uint8_t, 1> pool, int32_t num_layers, int32_t num_key_heads, int32_t num_value_heads,
                                    int32_t key_dim, int32_t value_dim, int32_t conv_width, int32_t conv_channels, bool keeps_border) {
  check_open();
  check_range("num_layers", num_layers, 1, 1 << 16);
  check_range("num_key_heads", num_key_heads, 1, kMaxHeads);
  check_range("num_value_heads", num_value_heads, 1, kMaxHeads);
  if (num_value_heads % num_key_heads) fail("num_value_heads must be a multiple of num_key_heads");
  check_range("key_dim", key_dim, 1, kMaxStateHeadDim);
  check_range("value_dim", value_dim, 1, kMaxStateHeadDim);
  check_range("conv_width", conv_width, 2, kMaxConvWidth);
  check_equal("conv_channels", conv_channels, 2 * (int64_t)num_key_heads * key_dim + (int64_t)num_value_heads * value_dim);
  if ((uintptr_t)pool.data() % sizeof(float)) fail("a pool of states must be aligned to 4 bytes");
  StateLayer first = {(float*)pool.data(), 0, 0, num_key_heads, num_value_heads, key_dim, value_dim, conv_width, conv_channels,
                      keeps_border};
  first.slot_floats = first.layer_floats() * num_layers;
  const int64_t num_slots = (int64_t)pool.size() / (first.slot_floats * (int64_t)sizeof(float));
  check_range("slots of a state pool", num_slots, 1, INT32_MAX - 1);
  groups_.push_back({first, first.layer_floats() * (int64_t)sizeof(float), num_layers});
  limits_.groups.push_back({num_slots, kOpenChunk, 0, true});
  kept_.push_back(nb::cast(pool));
}

const NativeProgram::Group& NativeProgram::group_of(int32_t group, int32_t index, bool is_state) const {
  check_range("a cache group", group, 0, (int64_t)groups_.size() - 1);
  const Group& g = groups_[(size_t)group];
  check_range("a cache layer", index, 0, g.num_layers - 1);
  if (is_state_group((size_t)group) != is_state) fail("cache group %d is of the wrong kind for this op", group);
  return g;
}

CacheLayer NativeProgram::layer(int32_t group, int32_t index) const {
  const Group& g = group_of(group, index, false);
  CacheLayer layer = std::get<CacheLayer>(g.first_layer);
  layer.layer_offset = index * g.layer_bytes;
  return layer;
}

StateLayer NativeProgram::state_layer(int32_t group, int32_t index) const {
  StateLayer layer = std::get<StateLayer>(group_of(group, index, true).first_layer);
  layer.layer_offset = index * layer.layer_floats();
  return layer;
}

uint8_t* NativeProgram::address(const Place& place, int64_t width, int64_t element_bytes, int64_t rows) const {
  check_open();
  const auto [offset, stride] = place;
  const int64_t most = sizes_.arena_bytes / element_bytes;  // elements that there is room for
  check_range("the width of an operand", width, 1, most);
  check_range("the stride of an operand", stride, width, kMaxWidth);
  check_range("the rows of an operand", rows, 1, (most - width) / stride + 1);
  const int64_t bytes = ((rows - 1) * stride + width) * element_bytes;
  check_range("the offset of an operand", offset, 0, sizes_.arena_bytes - bytes);
  return executor_->arena().data() + offset;
}

Floats NativeProgram::floats(const Place& place, int64_t width) const { return floats(place, width, max_rows()); }
Floats NativeProgram::floats(const Place& place, int64_t width, int64_t rows) const {
  if (place.first % (int64_t)sizeof(float)) fail("floats must be aligned to 4 bytes");
  return {(float*)address(place, width, sizeof(float), rows), place.second};
}
Floats NativeProgram::floats(const std::optional<Place>& place, int64_t width) const {
  return place ? floats(*place, width) : Floats();
}
Acts NativeProgram::acts(const std::optional<Place>& place, int64_t width) const { return acts(place, width, max_rows()); }
Acts NativeProgram::acts(const std::optional<Place>& place, int64_t width, int64_t rows) const {
  if (!place) return Acts();
  if (place->first % (int64_t)sizeof(ActBlock)) fail("activation blocks must be aligned to 64 bytes");
  return {(ActBlock*)address(*place, num_groups(width), sizeof(ActBlock), rows), place->second};
}

const float* NativeProgram::keep(const Vector& values, int64_t size) {
  check_open();
  const float* data = data_of_length("a vector", values, size);
  kept_.push_back(nb::cast(values));
  return data;
}

const PackedMatrix& NativeProgram::keep(const nb::object& matrix) {
  check_open();
  kept_.push_back(matrix);
  return nb::cast<const OwnedMatrix&>(matrix).view();
}

void NativeProgram::start(Part part) {
  check_open();
  part_ = part;
  sorted_experts_ = sorted_per_row_ = 0;
}

std::vector<Stage>& NativeProgram::stages() {
  check_open();
  return part_ == Part::kBody ? program_.body : part_ == Part::kHead ? program_.head.stages : program_.pool.stages;
}

void NativeProgram::add_row_op(RowOp op, int64_t scratch_floats) {
  RowStage* stage = stages().empty() ? nullptr : std::get_if<RowStage>(&stages().back());
  if (!stage || stage->rows_per_row > 1) fail("row ops need start_rows first");
  stage->ops.push_back(std::move(op));
  stage->scratch_floats = std::max(stage->scratch_floats, scratch_floats);
}

void NativeProgram::embedding(nb::object table, float scale, Place y) {
  const PackedMatrix& packed = keep(table);
  if (!is_body()) fail("embedding reads token ids, which the head has not");
  add_row_op(EmbeddingOp{packed, scale, floats(y, packed.K)});
  limits_.num_token_ids = std::min(limits_.num_token_ids, packed.N);
}

void NativeProgram::rms_norm(Place x, Vector weight, int64_t heads, float eps, std::optional<Place> y, std::optional<Place> act) {
  if (!y && !act) fail("rms_norm has no result");
  check_range("heads", heads, 1, kMaxHeads);
  const int64_t width = (int64_t)weight.size(), row_width = heads * width;
  const float* values = keep(weight, width);
  add_row_op(RmsNormOp{floats(x, row_width), values, heads, width, eps, floats(y, row_width), acts(act, row_width)}, y ? 0 : row_width);
}

void NativeProgram::gated_mul(Place x, const char* gate, int64_t width, std::optional<Place> y, std::optional<Place> act) {
  if (!y && !act) fail("gated_mul has no result");
  check_range("width", width, 1, kMaxWidth);
  add_row_op(GatedMulOp{floats(x, 2 * width), gate_of(gate), width, floats(y, width), acts(act, width)}, y ? 0 : width);
}

void NativeProgram::mul_by_gate(Place x, Place g, const char* gate, int64_t width, int64_t gate_width, std::optional<Place> y,
                                std::optional<Place> act) {
  if (!y && !act) fail("mul_by_gate has no result");
  check_range("width", width, 1, kMaxWidth);
  if (gate_width != 1) check_equal("the width of a gate", gate_width, width);
  add_row_op(MulByGateOp{floats(x, width), floats(g, gate_width), gate_of(gate), width, gate_width, floats(y, width), acts(act, width)},
             y ? 0 : width);
}

void NativeProgram::quantize(Place x, int64_t width, Place act) {
  add_row_op(QuantizeOp{floats(x, width), width, acts(act, width)});
}

void NativeProgram::rope(Place x, Array<const float, 2> table, int64_t heads, int64_t head_dim, bool interleaved) {
  if (!is_body()) fail("rope reads positions, which the head has not");
  check_range("heads", heads, 1, kMaxHeads);
  check_range("head_dim", head_dim, kMinHeadDim, kMaxHeadDim);
  check_range("positions of a rope table", (int64_t)table.shape(0), sizes_.max_model_len, INT32_MAX - 1);
  check_range("values of a rope table's row", (int64_t)table.shape(1), 2, head_dim);
  if (table.shape(1) % 2) fail("a rope table needs as many cosines as sines");
  check_open();
  kept_.push_back(nb::cast(table));
  add_row_op(RopeOp{floats(x, heads * head_dim), table.data(), heads, head_dim, (int64_t)table.shape(1) / 2, interleaved});
}

void NativeProgram::kv_write(Place k, Place v, int32_t group, int32_t index) {
  if (!is_body()) fail("kv_write reads slots, which the head has not");
  const CacheLayer cache = layer(group, index);
  const int64_t width = (int64_t)cache.num_kv_heads * cache.head_dim;
  add_row_op(KvWriteOp{floats(k, width), floats(v, width), cache, group});
}

void NativeProgram::add(Place a, Place b, int64_t width, Place y) {
  add_row_op(AddOp{floats(a, width), floats(b, width), width, floats(y, width)});
}
void NativeProgram::mul(Place a, Place b, int64_t width, Place y) {
  add_row_op(MulOp{floats(a, width), floats(b, width), width, floats(y, width)});
}
void NativeProgram::scale(Place x, float factor, int64_t width, Place y) {
  add_row_op(ScaleOp{floats(x, width), factor, width, floats(y, width)});
}
void NativeProgram::softcap(Place x, float cap, int64_t width, Place y) {
  add_row_op(SoftcapOp{floats(x, width), cap, width, floats(y, width)});
}
void NativeProgram::copy(Place x, int64_t width, Place y) { add_row_op(CopyOp{floats(x, width), width, floats(y, width)}); }

void NativeProgram::gather_rows(Place x, int64_t width, Place y) {
  if (is_body()) fail("gather_rows reads logit rows, which the body has not");
  add_row_op(GatherRowsOp{floats(x, width, sizes_.max_num_tokens), width, floats(y, width)});
}

GemmStage NativeProgram::product(const std::optional<Place>& x, const std::optional<Place>& act, const Place& y, bool add,
                                 const std::vector<SegmentArgs>& segments, int64_t rows) {
  if (segments.empty()) fail("a product needs a matrix");
  GemmStage stage;
  stage.add = add;
  for (const auto& [matrix, column, bias, int8] : segments) {
    const PackedMatrix& weight = keep(matrix);
    const float* bias_values = bias ? keep(*bias, weight.N) : nullptr;
    check_range("the column of a segment", column, 0, kMaxWidth);
    stage.segments.push_back({weight, column, bias_values, int8});
    stage.y = floats(y, column + weight.N, rows);
    add_input(stage, weight, int8, x, act, rows);
  }
  return stage;
}

void NativeProgram::gemm(std::optional<Place> x, std::optional<Place> act, Place y, bool add, const std::vector<SegmentArgs>& segments) {
  check_open();
  stages().emplace_back(product(x, act, y, add, segments, max_rows()));
}

void NativeProgram::gated_gemm(std::optional<Place> x, std::optional<Place> act, const char* gate, int64_t width,
                               std::optional<Place> y, std::optional<Place> y_act, const SegmentArgs& gate_part,
                               const SegmentArgs& up_part) {
  check_open();
  if (!y && !y_act) fail("gated_gemm has no result");
  check_range("width", width, 1, kMaxWidth);
  GatedGemmStage stage = {{}, {}, gate_of(gate), width, {}, {}, floats(y, width), acts(y_act, width)};
  const auto make_part = [&](const SegmentArgs& args) {
    const auto& [matrix, first_panel, bias, int8] = args;
    const PackedMatrix& weight = keep(matrix);
    check_range("the first panel of a part", first_panel, 0, weight.N / kPanelColumns);
    check_range("the columns of a part", width, 1, weight.N - first_panel * kPanelColumns);
    if (width % kPanelColumns) check_equal("the columns of a part", width, weight.N - first_panel * kPanelColumns);
    add_input(stage, weight, int8, x, act, max_rows());
    return GatedPart{weight, first_panel, bias ? keep(*bias, weight.N) : nullptr, int8};
  };
  stage.gate_part = make_part(gate_part);
  stage.up_part = make_part(up_part);
  stages().emplace_back(std::move(stage));
}

// What a product with `weight` reads: activation blocks or floats.
template <class ProductStage>
void NativeProgram::add_input(ProductStage& stage, const PackedMatrix& weight, bool int8, const std::optional<Place>& x,
                              const std::optional<Place>& act, int64_t rows) const {
  if (int8) {
    if (!is_quantized(weight.format)) fail("only quantised weights read activation blocks");
    if (!act) fail("a segment reads activation blocks, but there are none");
    stage.act = acts(act, weight.K, rows);
  } else {
    if (!x) fail("a segment reads floats, but there are none");
    stage.x = floats(*x, weight.K, rows);
  }
}

void NativeProgram::attention(Place q, Place out, int32_t group, int32_t index, int32_t num_heads, float scale, int32_t window,
                              float softcap) {
  check_open();
  if (!is_body()) fail("attention reads block tables, which the head has not");
  const CacheLayer cache = layer(group, index);
  check_range("num_heads", num_heads, 1, kMaxHeads);
  if (num_heads % cache.num_kv_heads) fail("num_heads must be a multiple of the cache's kv heads");
  check_range("window", window, 0, INT32_MAX - 1);
  Group& g = groups_[(size_t)group];
  g.is_seen_whole |= window == 0;
  g.longest_window = std::max(g.longest_window, window);
  const int64_t width = (int64_t)num_heads * cache.head_dim;
  stages().emplace_back(AttentionStage{floats(q, width), floats(out, width), cache, group, num_heads, window, scale, softcap});
}

void NativeProgram::causal_conv(Place x, Vector weight, int32_t group, int32_t index, Place y) {
  check_open();
  if (!is_body()) fail("causal_conv reads state slots, which the head has not");
  const StateLayer layer = state_layer(group, index);
  const float* taps = keep(weight, (int64_t)layer.conv_width * layer.conv_channels);
  stages().emplace_back(CausalConvStage{floats(x, layer.conv_channels), taps, layer, group, floats(y, layer.conv_channels)});
}

void NativeProgram::gated_delta(Place qkv, Place b, Place a, Vector decay, Vector dt_bias, bool tiled_heads, int32_t group,
                                int32_t index, Place out) {
  check_open();
  if (!is_body()) fail("gated_delta reads state slots, which the head has not");
  const StateLayer layer = state_layer(group, index);
  const int64_t heads = layer.num_value_heads;
  stages().emplace_back(GatedDeltaStage{floats(qkv, layer.conv_channels), floats(b, heads), floats(a, heads), keep(decay, heads),
                                        keep(dt_bias, heads), tiled_heads, layer, group, floats(out, heads * layer.value_dim)});
}

void NativeProgram::finish(Place logits, int64_t vocab_size, std::optional<Place> pooled, int64_t hidden_size) {
  check_open();
  program_.head.result = floats(logits, vocab_size, kHeadSlice);
  program_.head.width = vocab_size;
  if (pooled) {
    program_.pool.result = floats(*pooled, hidden_size, kHeadSlice);
    program_.pool.width = hidden_size;
  }
  if (const PackedMatrix* weight = screenable_weight(program_.head)) screen_bytes_ = Screen::num_bytes(*weight);
  for (size_t g = 0; g < groups_.size(); g++) limits_.groups[g].window = groups_[g].is_seen_whole ? 0 : groups_[g].longest_window;
  scratch_.per_thread = sampler_scratch_bytes(vocab_size);
  for (const auto* list : {&program_.body, &program_.head.stages, &program_.pool.stages}) {
    for (const Stage& stage : *list) {
      scratch_.per_thread = std::max(scratch_.per_thread, std::visit([](const auto& s) { return thread_scratch_bytes(s); }, stage));
      scratch_.shared = std::max(scratch_.shared, std::visit([&](const auto& s) { return shared_scratch_bytes(s, sizes_); }, stage));
    }
  }
  scratch_ = {round_up(scratch_.shared, kPageBytes), round_up(scratch_.per_thread, kPageBytes)};
  executor_->set_program(program_, scratch_);
  is_finished_ = true;
}

void NativeProgram::check_open() const {
  if (!executor_ || is_closing_) throw std::runtime_error("the program is closed");
  if (is_finished_) throw std::runtime_error("the program is finished already");
}

}  // namespace OCTAVO_NS
