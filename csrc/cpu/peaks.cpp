#include "peaks.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "cache_line.h"
#include "simd.h"

namespace OCTAVO_NS {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRepeats = 4096;        // of a loop between two looks at the clock: some microseconds
constexpr int kReadStep = 512;        // bytes of one turn of the reading loop
constexpr int kPrefetchAhead = 8192;  // bytes

#if defined(OCTAVO_ISA_AVX512)
constexpr int kRegisterBytes = 64;
constexpr int kFloatChains = 12;  // F32 sums that do not wait for each other: latency times throughput, within the registers
#elif defined(OCTAVO_ISA_AVX2)
constexpr int kRegisterBytes = 32;
constexpr int kFloatChains = 6;
#else
constexpr int kRegisterBytes = 16;
constexpr int kFloatChains = 3;
#endif

// Makes the compiler believe that a register has changed, so that it neither hoists nor merges what reads it.
#if defined(OCTAVO_ISA_AVX512)
OCTAVO_INLINE void renew(__m512i& a) { __asm__ volatile("" : "+v"(a)); }
OCTAVO_INLINE void renew(F32& a) { __asm__ volatile("" : "+v"(a.v)); }
#elif defined(OCTAVO_ISA_AVX2)
OCTAVO_INLINE void renew(__m256i& a) { __asm__ volatile("" : "+x"(a)); }
OCTAVO_INLINE void renew(F32& a) { __asm__ volatile("" : "+x"(a.lo), "+x"(a.hi)); }
#else
OCTAVO_INLINE void renew(F32& a) { __asm__ volatile("" : "+m"(a)); }
#endif

int64_t multiply_floats() {
  const F32 factor = set1(0.5f), addend = set1(1.0f);
  F32 sums[kFloatChains];
#pragma GCC unroll 16
  for (int i = 0; i < kFloatChains; i++) {
    sums[i] = zero();
    renew(sums[i]);
  }
  for (int repeat = 0; repeat < kRepeats; repeat++) {
#pragma GCC unroll 16
    for (int i = 0; i < kFloatChains; i++) sums[i] = fma(sums[i], factor, addend);
  }
  F32 total = sums[0];
  for (int i = 1; i < kFloatChains; i++) total = add(total, sums[i]);
  volatile float keep = reduce_add(total);
  (void)keep;
  return (int64_t)kRepeats * kFloatChains * kLanes * 2;
}

#if defined(OCTAVO_ISA_AVX512)

int64_t multiply_bytes() {  // vpdpbusd
  constexpr int kChains = 12;
  const __m512i w = _mm512_set1_epi8(3), x = _mm512_set1_epi8(1);
  __m512i sums[kChains];
#pragma GCC unroll 16
  for (int i = 0; i < kChains; i++) {
    sums[i] = _mm512_setzero_si512();
    renew(sums[i]);
  }
  for (int repeat = 0; repeat < kRepeats; repeat++) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; i++) {
      sums[i] = _mm512_dpbusd_epi32(sums[i], w, x);
      renew(sums[i]);  // or GCC 12 copies every sum
    }
  }
  return (int64_t)kRepeats * kChains * 64 * 2;
}

#elif defined(OCTAVO_ISA_AVX2)

int64_t multiply_bytes() {  // vpmaddubsw, summed in 16 bits as products of 4-bit weights may be; one vpmaddwd for eight of them
  constexpr int kChains = 4, kLinesInInt16 = 8;
  __m256i w = _mm256_set1_epi8(3), wide[kChains];
  const __m256i x = _mm256_set1_epi8(1), one = _mm256_set1_epi16(1);
#pragma GCC unroll 16
  for (int i = 0; i < kChains; i++) wide[i] = _mm256_setzero_si256();
  for (int repeat = 0; repeat < kRepeats / kLinesInInt16; repeat++) {
    __m256i sums[kChains];
#pragma GCC unroll 16
    for (int i = 0; i < kChains; i++) sums[i] = _mm256_setzero_si256();
#pragma GCC unroll 16
    for (int line = 0; line < kLinesInInt16; line++) {
#pragma GCC unroll 16
      for (int i = 0; i < kChains; i++) {
        renew(w);
        sums[i] = _mm256_add_epi16(sums[i], _mm256_maddubs_epi16(w, x));
        renew(sums[i]);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kChains; i++) wide[i] = _mm256_add_epi32(wide[i], _mm256_madd_epi16(sums[i], one));
  }
#pragma GCC unroll 16
  for (int i = 0; i < kChains; i++) renew(wide[i]);
  return (int64_t)kRepeats * kChains * 32 * 2;
}

#else

int64_t multiply_bytes() { return multiply_floats(); }  // the generic kernels multiply integers as floats

#endif

// One register of bytes.
typedef int64_t Chunk __attribute__((vector_size(kRegisterBytes), may_alias));

int64_t read_once(const uint8_t* begin, const uint8_t* end) {
  constexpr int kSums = 4;
  Chunk sums[kSums] = {};
  for (const uint8_t* p = begin; p + kReadStep <= end; p += kReadStep) {
#pragma GCC unroll 8
    for (int line = 0; line < kReadStep / kCacheLineBytes; line++) __builtin_prefetch(p + kPrefetchAhead + kCacheLineBytes * line);
#pragma GCC unroll 32
    for (int i = 0; i < kReadStep / kRegisterBytes; i++) {
      Chunk value;
      memcpy(&value, p + kRegisterBytes * i, sizeof value);
      sums[i % kSums] ^= value;
    }
  }
  const Chunk total = (sums[0] ^ sums[1]) ^ (sums[2] ^ sums[3]);
  volatile int64_t keep = total[0] ^ total[1];
  (void)keep;
  return (end - begin) / kReadStep * kReadStep;
}

// Run prepare(thread), then work(thread) on all threads until the time is up; each call returns what it did. Return the sum per
// second.
template <class Prepare, class Work>
double run_for(int32_t num_threads, double seconds, Prepare prepare, Work work) {
  std::atomic<int32_t> num_ready{1};
  std::atomic<bool> is_on{false}, is_over{false};
  std::atomic<int64_t> total{0};
  const auto serve = [&](int32_t thread) {
    prepare(thread);
    num_ready.fetch_add(1);
    while (!is_on.load() && !is_over.load()) std::this_thread::yield();
    int64_t done = 0;
    while (!is_over.load(std::memory_order_relaxed)) done += work(thread);
    total.fetch_add(done);
  };
  std::vector<std::thread> threads;
  const auto finish = [&] {
    is_over.store(true);
    for (std::thread& thread : threads) thread.join();
  };
  try {
    for (int32_t thread = 1; thread < num_threads; thread++) threads.emplace_back(serve, thread);
  } catch (...) {
    finish();
    throw;
  }
  prepare(0);
  while (num_ready.load() < num_threads) std::this_thread::yield();
  const Clock::time_point started = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - started).count(); };
  is_on.store(true);
  int64_t done = 0;
  do done += work(0);
  while (elapsed() < seconds);
  finish();
  return (double)(done + total.load()) / elapsed();
}

void nothing(int32_t) {}

}  // namespace

double int8_operations_per_second(int32_t num_threads, double seconds) {
  return run_for(num_threads, seconds, nothing, [](int32_t) { return multiply_bytes(); });
}

double f32_operations_per_second(int32_t num_threads, double seconds) {
  return run_for(num_threads, seconds, nothing, [](int32_t) { return multiply_floats(); });
}

double bytes_read_per_second(const uint8_t* data, int64_t size, int32_t num_threads, double seconds) {
  constexpr int64_t kPiece = 256 << 10;  // read between two looks at the clock
  struct alignas(64) Part {
    int64_t begin, end, next;
  };
  std::vector<Part> parts;
  for (int32_t thread = 0; thread < num_threads; thread++) {
    const int64_t begin = size * thread / num_threads / kReadStep * kReadStep;
    parts.push_back({begin, size * (thread + 1) / num_threads, begin});
  }
  const auto read_piece = [&](int32_t thread) {
    Part& part = parts[(size_t)thread];
    const int64_t end = part.next + kPiece < part.end ? part.next + kPiece : part.end;
    const int64_t done = read_once(data + part.next, data + end);
    part.next = end + kReadStep <= part.end ? end : part.begin;
    return done;
  };
  const auto read_all = [&](int32_t thread) { read_once(data + parts[(size_t)thread].begin, data + parts[(size_t)thread].end); };
  return run_for(num_threads, seconds, read_all, read_piece);
}

}  // namespace OCTAVO_NS
