// Threaded packing of weight matrices.
#include "packed_matrix.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>

#include "cpu/arena.h"
#include "cpu/float_mode.h"
#include "cpu/quantize_weights.h"

namespace OCTAVO_NS {

namespace {

int64_t num_shares(int64_t panels, int num_threads) { return std::clamp<int64_t>(num_threads, 1, std::max<int64_t>(panels, 1)); }

// f(share, first panel, last panel + 1) for equal shares of the panels, each on a thread.
template <class F>
void for_each_share(int64_t panels, int64_t shares, F f) {
  const auto run = [&](int64_t t) { f(t, panels * t / shares, panels * (t + 1) / shares); };
  std::vector<std::thread> others;
  for (int64_t t = 1; t < shares; t++) {
    try {
      others.emplace_back(run, t);
    } catch (...) {  // no more threads to be had
      run(t);
    }
  }
  run(0);
  for (std::thread& other : others) other.join();
}

}  // namespace

OwnedMatrix::OwnedMatrix(WeightFormat format, int64_t N, int64_t K)
    : format_(format),
      memory_(OCTAVO_NS::num_panels(N) * panel_bytes(format, K), kPackedSlack),
      view_{memory_.data(), N, K, panel_bytes(format, K), packed_as(format)} {}

void OwnedMatrix::pack(const FileRows& rows, int num_threads) {
  for_each_share(num_panels(), num_shares(num_panels(), num_threads),
                 [&](int64_t, int64_t begin, int64_t end) { pack(rows, begin, end); });
}

void OwnedMatrix::pack(const FileRows& rows, int64_t panel_begin, int64_t panel_end) {
  pack_panels(format_, rows.data(), view_.N, view_.K, memory_.data(), panel_begin, panel_end);
}

int64_t OwnedMatrix::quantize(WeightFormat source, const FileRows& rows, int num_threads) {
  const int64_t shares = num_shares(num_panels(), num_threads);
  std::vector<std::unique_ptr<Arena>> scratch;
  for (int64_t t = 0; t < shares; t++) scratch.push_back(std::make_unique<Arena>(panel_bytes(source, view_.K)));
  std::vector<int64_t> unfit((size_t)shares, -1);
  for_each_share(num_panels(), shares, [&](int64_t t, int64_t begin, int64_t end) {
    const FloatMode mode;
    unfit[(size_t)t] = quantize_panels(view_.format, source, rows.data(), view_.N, view_.K, memory_.data(), begin, end,
                                       scratch[(size_t)t]->data());
  });
  const auto first = std::find_if(unfit.begin(), unfit.end(), [](int64_t row) { return row >= 0; });
  return first == unfit.end() ? -1 : *first;
}

void OwnedMatrix::restore(const uint8_t* bytes, int num_threads) {
  for_each_share(num_panels(), num_shares(num_panels(), num_threads), [&](int64_t, int64_t begin, int64_t end) {
    memcpy(memory_.data() + begin * view_.panel_bytes, bytes + begin * view_.panel_bytes, (size_t)((end - begin) * view_.panel_bytes));
  });
}

}  // namespace OCTAVO_NS
