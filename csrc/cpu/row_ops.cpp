// Row-wise ops. Plain loops where every element is on its own: the compiler's vectors cannot change their bits.
#include "row_ops.h"

#include "simd.h"
#include "sum_of_squares.h"

namespace OCTAVO_NS {

namespace {

void rotate_halves(float* __restrict a, float* __restrict b, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; i++) {
    const float first = a[i], second = b[i];
    a[i] = first * cos[i] - second * sin[i];
    b[i] = second * cos[i] + first * sin[i];
  }
}

void rotate_neighbours(float* __restrict v, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; i++) {
    const float first = v[2 * i], second = v[2 * i + 1];
    v[2 * i] = first * cos[i] - second * sin[i];
    v[2 * i + 1] = second * cos[i] + first * sin[i];
  }
}

template <Gate gate>
OCTAVO_INLINE F32 gated(F32 x) {
  if constexpr (gate == Gate::kSigmoid) return sigmoid(x);
  if constexpr (gate == Gate::kSilu) return mul(x, sigmoid(x));
  // 0.5 x (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
  const F32 slope = fma(mul(x, x), set1(0.0713548163f), set1(1.59576912f));
  return mul(x, sigmoid(mul(x, slope)));
}

// y = gate(g) * x; y may be x.
template <Gate gate>
void whole_gate_rows(const float* g, const float* x, float* y, int64_t E, int64_t ldg, int64_t ldx, int64_t ldy, int64_t row_begin,
                     int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; row++) {
    const float *in_gate = g + row * ldg, *in = x + row * ldx;
    float* out = y + row * ldy;
    int64_t i = 0;
    for (; i + kLanes <= E; i += kLanes) store(out + i, mul(gated<gate>(load(in_gate + i)), load(in + i)));
    const int tail = (int)(E - i);
    if (tail > 0) store_first(out + i, mul(gated<gate>(load_first(in_gate + i, tail)), load_first(in + i, tail)), tail);
  }
}

// The same with one gate for the whole row.
template <Gate gate>
void one_gate_rows(const float* g, const float* x, float* y, int64_t E, int64_t ldg, int64_t ldx, int64_t ldy, int64_t row_begin,
                   int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; row++) {
    const float factor = first_lane(gated<gate>(set1(g[row * ldg])));
    for (int64_t i = 0; i < E; i++) y[row * ldy + i] = factor * x[row * ldx + i];
  }
}

template <Gate gate>
void gate_rows(bool is_one, const float* g, const float* x, float* y, int64_t E, int64_t ldg, int64_t ldx, int64_t ldy,
               int64_t row_begin, int64_t row_end) {
  (is_one ? one_gate_rows<gate> : whole_gate_rows<gate>)(g, x, y, E, ldg, ldx, ldy, row_begin, row_end);
}

}  // namespace

void rms_norm(const float* x, const float* w, float* y, int64_t heads, int64_t E, float eps, int64_t ldx, int64_t ldy,
              int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; row++) {
    for (int64_t head = 0; head < heads; head++) {
      const float* in = x + row * ldx + head * E;
      float* out = y + row * ldy + head * E;
      const float mean = sum_of_squares(in, E) / (float)E;
      const float factor = 1.0f / first_lane(sqrt(set1(mean + eps)));
      for (int64_t i = 0; i < E; i++) out[i] = in[i] * factor * w[i];
    }
  }
}

void rope(float* x, const float* table, const int32_t* positions, int64_t heads, int64_t D, int64_t half, bool interleaved,
          int64_t ldx, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; row++) {
    const float* cos = table + 2 * half * positions[row];
    for (int64_t head = 0; head < heads; head++) {
      float* v = x + row * ldx + head * D;
      if (interleaved)
        rotate_neighbours(v, cos, cos + half, half);
      else
        rotate_halves(v, v + half, cos, cos + half, half);
    }
  }
}

void mul_by_gate(const float* x, const float* g, float* y, Gate gate, int64_t E, int64_t gate_width, int64_t ldx, int64_t ldg,
                 int64_t ldy, int64_t row_begin, int64_t row_end) {
  const bool is_one = gate_width == 1;
  switch (gate) {
    case Gate::kSilu: return gate_rows<Gate::kSilu>(is_one, g, x, y, E, ldg, ldx, ldy, row_begin, row_end);
    case Gate::kGeluTanh: return gate_rows<Gate::kGeluTanh>(is_one, g, x, y, E, ldg, ldx, ldy, row_begin, row_end);
    case Gate::kSigmoid: return gate_rows<Gate::kSigmoid>(is_one, g, x, y, E, ldg, ldx, ldy, row_begin, row_end);
  }
}

void gated_mul(const float* x, float* y, Gate gate, int64_t F, int64_t ldx, int64_t ldy, int64_t row_begin, int64_t row_end) {
  mul_by_gate(x + F, x, y, gate, F, F, ldx, ldx, ldy, row_begin, row_end);
}

void add_rows(const float* a, const float* b, float* y, int64_t E, int64_t lda, int64_t ldb, int64_t ldy, int64_t row_begin,
              int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; row++)
    for (int64_t i = 0; i < E; i++) y[row * ldy + i] = a[row * lda + i] + b[row * ldb + i];
}

void mul_rows(const float* a, const float* b, float* y, int64_t E, int64_t lda, int64_t ldb, int64_t ldy, int64_t row_begin,
              int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; row++)
    for (int64_t i = 0; i < E; i++) y[row * ldy + i] = a[row * lda + i] * b[row * ldb + i];
}

void scale_rows(const float* x, float* y, float factor, int64_t E, int64_t ldx, int64_t ldy, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; row++)
    for (int64_t i = 0; i < E; i++) y[row * ldy + i] = factor * x[row * ldx + i];
}

void softcap_rows(const float* x, float* y, float cap, int64_t E, int64_t ldx, int64_t ldy, int64_t row_begin, int64_t row_end) {
  const F32 limit = set1(cap);
  for (int64_t row = row_begin; row < row_end; row++) {
    const float* in = x + row * ldx;
    float* out = y + row * ldy;
    int64_t i = 0;
    for (; i + kLanes <= E; i += kLanes) store(out + i, mul(limit, tanh(div(load(in + i), limit))));
    const int tail = (int)(E - i);
    if (tail > 0) store_first(out + i, mul(limit, tanh(div(load_first(in + i, tail), limit))), tail);
  }
}

void gather_rows(const float* x, const int32_t* rows, float* y, int64_t E, int64_t ldx, int64_t ldy, int64_t row_begin,
                 int64_t row_end) {
  for (int64_t i = row_begin; i < row_end; i++) memcpy(y + i * ldy, x + rows[i] * ldx, (size_t)E * sizeof(float));
}

void embedding(const PackedMatrix& table, const int32_t* token_ids, float scale, float* y, int64_t ldy, int64_t row_begin,
               int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; row++) {
    float* out = y + row * ldy;
    dequantize_row(table, token_ids[row], out);
    if (scale == 1.0f) continue;
    for (int64_t i = 0; i < table.K; i++) out[i] *= scale;
  }
}

}  // namespace OCTAVO_NS
