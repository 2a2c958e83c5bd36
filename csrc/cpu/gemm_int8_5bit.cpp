// Instances of the int8 product for weights of 5 bits.
#include "gemm_int8_body.h"

namespace OCTAVO_NS {

OCTAVO_INT8_INSTANCE(kQ5_0);
OCTAVO_INT8_INSTANCE(kQ5_1);
OCTAVO_INT8_INSTANCE(kQ5_K);

}  // namespace OCTAVO_NS
