// Instances of the int8 product for weights of 2 and 3 bits, and of 4 bits that are places in a table.
#include "gemm_int8_body.h"

namespace OCTAVO_NS {

OCTAVO_INT8_INSTANCE(kQ2_K);
OCTAVO_INT8_INSTANCE(kQ3_K);
OCTAVO_INT8_INSTANCE(kIQ4_NL);

}  // namespace OCTAVO_NS
