// Chooses the kernel of a product by the weights' format.
#include "gemm.h"

#include "gemm_f32_body.h"
#include "gemm_int8_body.h"

namespace OCTAVO_NS {

// Compiled in gemm_int8_*.cpp.
#define OCTAVO_EXTERN(F) extern OCTAVO_INT8_INSTANCE(F);
OCTAVO_INT8_CASES(OCTAVO_EXTERN)
#undef OCTAVO_EXTERN

int64_t gemm_scratch_bytes(WeightFormat format, int64_t K, bool activation_quantization) {
  if (!is_quantized(format) || !activation_quantization) return float_scratch_bytes(K);
#define OCTAVO_CASE(F) \
  case WeightFormat::F:  \
    return expanded_scratch_bytes(num_groups(K) * ExpandedGroups<ArithmeticOf<WeightFormat::F>, kExpandedPanels>::kGroupBytes);
  switch (packed_as(format)) {
    OCTAVO_INT8_CASES(OCTAVO_CASE)
    default: return 0;
  }
#undef OCTAVO_CASE
}

void gemm_int8(const PackedMatrix& w, const ActBlock* x, int64_t ldx, int64_t rows, const GemmOutput& out, int64_t panel_begin,
               int64_t panel_end, uint8_t* scratch) {
  if (rows <= 0) return;  // no tile is of none
#define OCTAVO_CASE(F) \
  case WeightFormat::F: return gemm_int8_format<WeightFormat::F>(w, x, ldx, rows, out, panel_begin, panel_end, scratch);
  switch (w.format) {
    OCTAVO_INT8_CASES(OCTAVO_CASE)
    default: return;
  }
#undef OCTAVO_CASE
}

void gemm_f32(const PackedMatrix& w, const float* x, int64_t ldx, int64_t rows, const GemmOutput& out, int64_t panel_begin,
              int64_t panel_end, uint8_t* scratch) {
  if (rows <= 0) return;
#define OCTAVO_CASE(F) \
  case WeightFormat::F: return gemm_f32_format<WeightFormat::F>(w, x, ldx, rows, out, panel_begin, panel_end, scratch);
  switch (w.format) {
    OCTAVO_FLOAT_CASES(OCTAVO_CASE)
    OCTAVO_QUANTIZED_CASES(OCTAVO_CASE)
    default: return;
  }
#undef OCTAVO_CASE
}

}  // namespace OCTAVO_NS
