#include "gated_delta.h"

#include <algorithm>

#include "delta_panels.h"
#include "simd.h"
#include "sum_of_squares.h"

namespace OCTAVO_NS {

namespace {

static_assert(kOpenChunk == kLanes && kStateLanes == kLanes, "a vector holds the open rows, or a panel's value dims");

constexpr float kNormEps = 1e-6f;  // added to the squared length of q and k

// Rows of one request that follow each other in one open chunk, seen by one key head.
struct OpenRows {
  int64_t row;     // of the step, the first one
  int32_t slot;
  int first, count;  // index in the open chunk of the first row, and how many rows there are
  int32_t save;      // slot that keeps the state after the last row, or -1
  bool is_last;      // of the chunk: the rows are folded
};

// What the rows have in common for all value heads of the key head.
struct KeyProducts {
  alignas(64) float keys[kOpenChunk][kLanes];     // k_j . k_t, [row][j]
  alignas(64) float queries[kOpenChunk][kLanes];  // k_j . q_t
};

// What the rows of one value head are made with, where D_t,j is the decay from row j to row t and D_t that since the border.
struct Coefficients {
  alignas(64) float keys[kOpenChunk][kLanes];     // -D_t,j (k_j . k_t), [row][j]; zero from j = t on
  alignas(64) float queries[kOpenChunk][kLanes];  // D_t,j (k_j . q_t); zero past j = t
  alignas(64) float beta[kLanes], decay[kLanes];  // [row], the latter D_t
  alignas(64) float fold[kLanes];                 // D_15,j
};

// Lanes from n on, which hold rows that do not count, become zero.
F32 first_rows(F32 x, int n) { return select(mask_first(n), x, zero()); }

void scale_to_unit(const float* x, float* y, int64_t K, float factor) {
  factor /= first_lane(sqrt(set1(sum_of_squares(x, K) + kNormEps)));
  for (int64_t i = 0; i < K; i++) y[i] = x[i] * factor;
}

// Normalise keys and queries into `vectors` [keys of all rows, then queries][key_dim], store the keys, and multiply both with all keys.
void make_keys(const GatedDeltaArgs& args, const OpenRows& rows, int64_t key_head, float* vectors, KeyProducts& products) {
  const StateLayer& layer = args.layer;
  const int64_t K = layer.key_dim, head = key_head * K, key_column = layer.num_key_heads * K;
  const float query_scale = 1.0f / first_lane(sqrt(set1((float)K)));
  float* open_keys = layer.open_keys(rows.slot) + head * kOpenChunk;
  for (int i = 0; i < rows.count; i++) {
    const float* row = args.qkv + (rows.row + i) * args.ld_qkv + head;
    float* key = vectors + i * K;
    scale_to_unit(row + key_column, key, K, 1.0f);
    scale_to_unit(row, vectors + (rows.count + i) * K, K, query_scale);
    for (int64_t k = 0; k < K; k++) open_keys[k * kOpenChunk + rows.first + i] = key[k];
  }
  alignas(64) float y[2 * kOpenChunk][kPanelsAtOnce][kLanes];
  multiply_panels(open_keys, 1, K, vectors, 2 * rows.count, y[0][0]);
  for (int i = 0; i < rows.count; i++) {
    store(products.keys[i], load(y[i][0]));
    store(products.queries[i], load(y[rows.count + i][0]));
  }
}

// The gates of a value head's rows, and from them everything that multiplies a vector of value dims. The slot keeps D_t,j of the last
// row, and in its last lane, which is no earlier row's while the chunk is open, D_t.
void make_coefficients(const GatedDeltaArgs& args, const OpenRows& rows, int64_t head, const KeyProducts& products, Coefficients& c) {
  float* kept = args.layer.open_decay(rows.slot) + head * kOpenChunk;
  alignas(64) float beta_logits[kLanes] = {}, steps[kLanes] = {};
  for (int i = 0; i < rows.count; i++) {
    beta_logits[i] = args.b[(rows.row + i) * args.ldb + head];
    steps[i] = args.a[(rows.row + i) * args.lda + head] + args.dt_bias[head];
  }
  store(c.beta, sigmoid(load(beta_logits)));
  store(steps, exp(mul(set1(args.decay[head]), softplus(load(steps)))));
  F32 decays = load(kept);
  float since_border = rows.first == 0 ? 1.0f : kept[kOpenChunk - 1];
  for (int i = 0; i < rows.count; i++) {
    const int t = rows.first + i;
    decays = select(mask_first(t), mul(decays, set1(steps[i])), set1(1.0f));
    since_border *= steps[i];
    store(c.keys[i], sub(zero(), first_rows(mul(decays, load(products.keys[i])), t)));
    store(c.queries[i], first_rows(mul(decays, load(products.queries[i])), t + 1));
    c.decay[i] = since_border;
  }
  store(c.fold, decays);
  store(kept, decays);
  if (!rows.is_last) kept[kOpenChunk - 1] = since_border;
}

// u and o of the rows, in order, for P panels of value dims: `products` are S^T k of all rows, then S^T q.
template <int P>
void solve_rows(const OpenRows& rows, const Coefficients& c, const float (*products)[kPanelsAtOnce][kLanes], const float* v, int64_t ldv,
                float* updates, int64_t ldu, float* out, int64_t ldo, int num_dims) {
  for (int i = 0; i < rows.count; i++) {
    const int t = rows.first + i;
    const F32 decay = set1(c.decay[i]), negative_decay = set1(-c.decay[i]);
    F32 u[P], o[P];
    for (int p = 0; p < P; p++) {
      const F32 value = load_first(v + i * ldv + p * kLanes, std::min(num_dims - p * kLanes, kLanes));
      u[p] = fma(negative_decay, load(products[i][p]), value);
      o[p] = mul(decay, load(products[rows.count + i][p]));
    }
    for (int j = 0; j < t; j++) {
      const F32 key = set1(c.keys[i][j]), query = set1(c.queries[i][j]);
      for (int p = 0; p < P; p++) {
        const F32 update = load(updates + j * ldu + p * kLanes);
        u[p] = fma(key, update, u[p]);
        o[p] = fma(query, update, o[p]);
      }
    }
    for (int p = 0; p < P; p++) {
      u[p] = mul(set1(c.beta[i]), u[p]);
      store(updates + t * ldu + p * kLanes, u[p]);
      o[p] = fma(set1(c.queries[i][t]), u[p], o[p]);
      store_first(out + i * ldo + p * kLanes, o[p], std::min(num_dims - p * kLanes, kLanes));
    }
  }
}

// What the open keys count for when they are folded: D_15,j k_j, as [key_dim][j].
void make_fold_weights(const float* open_keys, const float* decays, int64_t K, float* weights) {
  const F32 decay = load(decays);
  for (int64_t k = 0; k < K; k++) store(weights + k * kLanes, mul(decay, load(open_keys + k * kLanes)));
}

void run_value_head(const GatedDeltaArgs& args, const OpenRows& rows, int64_t key_head, int64_t head, const float* vectors,
                    const KeyProducts& key_products, float* fold_weights) {
  const StateLayer& layer = args.layer;
  const int64_t K = layer.key_dim, D = layer.value_dim, ldu = layer.padded_value_dim();
  Coefficients c;
  make_coefficients(args, rows, head, key_products, c);
  float* state = layer.state(rows.slot) + head * layer.head_floats();
  float* updates = layer.open_updates(rows.slot) + head * kOpenChunk * ldu;
  if (rows.is_last) make_fold_weights(layer.open_keys(rows.slot) + key_head * K * kOpenChunk, c.fold, K, fold_weights);
  const float* v = args.qkv + rows.row * args.ld_qkv + 2 * layer.num_key_heads * K + head * D;
  float* out = args.out + rows.row * args.ldo + head * D;
  alignas(64) float products[2 * kOpenChunk][kPanelsAtOnce][kLanes];
  for (int64_t dim = 0; dim < D; dim += kPanelsAtOnce * kLanes) {
    const int num_dims = (int)std::min(D - dim, (int64_t)kPanelsAtOnce * kLanes), num_panels = (num_dims + kLanes - 1) / kLanes;
    float* panels = state + dim * K;
    multiply_panels(panels, num_panels, K, vectors, 2 * rows.count, products[0][0]);
    const auto solve = num_panels == 1 ? solve_rows<1> : solve_rows<kPanelsAtOnce>;
    solve(rows, c, products, v + dim, args.ld_qkv, updates + dim, ldu, out + dim, args.ldo, num_dims);
    if (rows.is_last) fold_panels(panels, num_panels, K, c.decay[rows.count - 1], fold_weights, updates + dim, ldu);
  }
  if (rows.save >= 0)
    memcpy(layer.state(rows.save) + head * layer.head_floats(), state, (size_t)layer.head_floats() * sizeof(float));
}

}  // namespace

int64_t gated_delta_units(const GatedDeltaArgs& args) { return (int64_t)args.requests.num_requests * args.layer.num_key_heads; }

int64_t gated_delta_scratch_bytes(const StateLayer& layer) {
  return (2 * kOpenChunk + kLanes) * (int64_t)layer.key_dim * (int64_t)sizeof(float);  // vectors, fold weights
}

void gated_delta_unit(const GatedDeltaArgs& args, int64_t unit, uint8_t* scratch) {
  const StateRequests& requests = args.requests;
  const int32_t request = (int32_t)(unit % requests.num_requests);  // so that a chunk of units has some of every request
  const int64_t key_head = unit / requests.num_requests, num_key_heads = args.layer.num_key_heads;
  const int64_t heads_per_key = args.layer.num_value_heads / num_key_heads;
  float* vectors = (float*)scratch;
  float* fold_weights = vectors + 2 * kOpenChunk * args.layer.key_dim;
  KeyProducts products;
  OpenRows rows;
  rows.slot = requests.slot(request);
  int32_t position = requests.first_position(request);
  const int32_t end = requests.seq_lens[request];
  for (rows.row = requests.query_start_loc[request]; position < end; rows.row += rows.count, position += rows.count) {
    rows.first = position % kOpenChunk;
    rows.count = std::min(kOpenChunk - rows.first, end - position);
    rows.is_last = rows.first + rows.count == kOpenChunk;
    rows.save = rows.is_last ? requests.save_slot(request, position + rows.count) : -1;
    make_keys(args, rows, key_head, vectors, products);
    for (int64_t i = 0; i < heads_per_key; i++) {
      const int64_t head = args.tiled_heads ? key_head + i * num_key_heads : key_head * heads_per_key + i;
      run_value_head(args, rows, key_head, head, vectors, products, fold_weights);
    }
  }
}

}  // namespace OCTAVO_NS
