#include "arena.h"

#include <sys/mman.h>

#include <new>

#include "cache_line.h"

namespace OCTAVO_NS {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

Arena::Arena(int64_t bytes) : size_(round_up(bytes > 0 ? (size_t)bytes : 1, (size_t)kPageBytes)) {
  // A large one starts on a huge page: map that much more, then give the ends back.
  const size_t spare = size_ >= kHugePage ? kHugePage : 0;
  void* mapped = mmap(nullptr, size_ + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  uint8_t* base = (uint8_t*)mapped;
  const size_t before = spare ? round_up((size_t)base, kHugePage) - (size_t)base : 0;
  if (before > 0) munmap(base, before);
  if (spare > before) munmap(base + before + size_, spare - before);
  data_ = base + before;
#if defined(MADV_HUGEPAGE)
  if (spare) madvise(data_, size_, MADV_HUGEPAGE);  // advice: a refusal costs speed only
#endif
}

Arena::~Arena() { munmap(data_, size_); }

}  // namespace OCTAVO_NS
