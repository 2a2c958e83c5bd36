// Instances of the int8 product for weights of 4 bits.
#include "gemm_int8_body.h"

namespace OCTAVO_NS {

OCTAVO_INT8_INSTANCE(kQ4_0);
OCTAVO_INT8_INSTANCE(kQ4_1);
OCTAVO_INT8_INSTANCE(kQ4_K);
OCTAVO_INT8_INSTANCE(kQ4_Z);

}  // namespace OCTAVO_NS
