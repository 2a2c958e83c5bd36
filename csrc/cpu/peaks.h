// What this machine can do at most, measured: loops of nothing but the instruction, or the loads, that a kernel is limited by.
#pragma once

#include <cstdint>

#include "isa.h"

namespace OCTAVO_NS {

// Each runs on `num_threads` threads at once, the caller's included, for about `seconds`. Returns what they did per second
// together. A core that is taken away meanwhile shows: take the best of several. Throws std::system_error.

// Integer operations of the int8 product that the kernels are made of; a multiply-add counts as two.
double int8_operations_per_second(int32_t num_threads, double seconds);
// Float operations of fused multiply-adds (a multiply and an add where there are none).
double f32_operations_per_second(int32_t num_threads, double seconds);
// Bytes read of data[0, size), each thread its own part, again and again. The first pass is not counted: it fills the caches.
double bytes_read_per_second(const uint8_t* data, int64_t size, int32_t num_threads, double seconds);

}  // namespace OCTAVO_NS
