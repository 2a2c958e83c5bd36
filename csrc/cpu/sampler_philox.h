// Counter-based random numbers. Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", SC'11.
#pragma once

#include <cstdint>

#include "isa.h"

namespace OCTAVO_NS {

// Philox4x32 with ten rounds: `counter` [4] becomes four random words under `key` [2].
void philox4x32(uint32_t* counter, const uint32_t* key);

}  // namespace OCTAVO_NS
