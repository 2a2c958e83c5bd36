// Instances of the int8 product for weights of 6 and 8 bits, and for the upper six of eight.
#include "gemm_int8_body.h"

namespace OCTAVO_NS {

OCTAVO_INT8_INSTANCE(kQ6_K);
OCTAVO_INT8_INSTANCE(kQ8_0);
OCTAVO_INT8_INSTANCE(kQ8_Top);

}  // namespace OCTAVO_NS
