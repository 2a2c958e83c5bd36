// Counter-based random numbers: the same answer for the same (seed, position, draw), wherever and whenever it is asked.
#include "sampler_philox.h"

#include "sampler.h"

namespace OCTAVO_NS {

void philox4x32(uint32_t* counter, const uint32_t* key) {
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; round++) {
    const uint64_t a = (uint64_t)0xD2511F53u * counter[0], b = (uint64_t)0xCD9E8D57u * counter[2];
    counter[0] = (uint32_t)(b >> 32) ^ counter[1] ^ k0;
    counter[2] = (uint32_t)(a >> 32) ^ counter[3] ^ k1;
    counter[1] = (uint32_t)b;
    counter[3] = (uint32_t)a;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

double philox_uniform(uint64_t seed, int64_t position, uint32_t draw) {
  uint32_t counter[4] = {(uint32_t)position, (uint32_t)((uint64_t)position >> 32), draw, 0};
  const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
  philox4x32(counter, key);
  return counter[0] * (1.0 / 4294967296.0);
}

}  // namespace OCTAVO_NS
