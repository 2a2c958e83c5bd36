#include "matrix_memory.h"

#include <mutex>

#include "cpu/arena.h"
#include "cpu/cache_line.h"

namespace OCTAVO_NS {

namespace {

constexpr int64_t kMappingBytes = int64_t{64} << 20;
constexpr int64_t kLargest = kMappingBytes / 16;  // that shares a mapping: what is left at its end is lost

// Gives out a mapping from its beginning; what is freed comes back when all of it is.
struct Mapping {
  Arena arena{kMappingBytes};
  int64_t used = 0;
};

std::mutex mutex;
std::weak_ptr<Mapping> current;  // weak: a mapping goes with the last matrix in it

}  // namespace

MatrixMemory::MatrixMemory(int64_t bytes, int64_t slack) {
  if (bytes > kLargest) {
    const auto arena = std::make_shared<Arena>(bytes + slack);
    data_ = {arena, arena->data()};
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<Mapping> mapping = current.lock();
  if (!mapping || mapping->used + bytes + slack > kMappingBytes) {
    mapping = std::make_shared<Mapping>();
    current = mapping;
  }
  data_ = {mapping, mapping->arena.data() + mapping->used};
  mapping->used += whole_lines(bytes);
}

}  // namespace OCTAVO_NS
