// The inner loops of Gated DeltaNet on panels: a panel is a matrix [K][16], sixteen value dims or sixteen open rows wide.
#pragma once

#include <cstdint>

#include "isa.h"

namespace OCTAVO_NS {

constexpr int kPanelsAtOnce = 2;  // of a state: enough independent sums to hide the latency of an fma

// y[v][p] = sum over k of x[v][k] * panels[p][k], k in order, for P panels one after the other. P: 1 .. kPanelsAtOnce.
void multiply_panels(const float* panels,  // [P, K, 16]
                     int num_panels, int64_t K,
                     const float* x,  // [V, K]
                     int64_t num_vectors,
                     float* y);  // [V, kPanelsAtOnce, 16]

// panels[p][k] = scale * panels[p][k] + sum over j of weights[k][j] * updates[j][p], j = 0 .. 15 in order.
void fold_panels(float* panels,  // [P, K, 16]
                 int num_panels, int64_t K, float scale,
                 const float* weights,  // [K, 16]
                 const float* updates,  // [16, ...]  row stride ldu; panel p at column 16 p
                 int64_t ldu);

}  // namespace OCTAVO_NS
