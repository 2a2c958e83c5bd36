// The smallest scale of values that are rounded to integers.
#pragma once

#include "isa.h"

namespace OCTAVO_NS {

// Below this a scale counts as zero, so that no quotient or product of it is a denormal.
constexpr float kSmallestScale = 7.8886090522101181e-31f;  // 2^-100

}  // namespace OCTAVO_NS
