// Threaded packing of weight matrices.
#include "packed_matrix.h"

#include <algorithm>
#include <system_error>
#include <thread>

namespace OCTAVO_NS {

namespace {

int64_t allocated_bytes(WeightFormat format, int64_t N, int64_t K) {
  const int64_t panels = (N + kPanelColumns - 1) / kPanelColumns;
  return panels * panel_bytes(format, K) + kPackedSlack;
}

}  // namespace

OwnedMatrix::OwnedMatrix(WeightFormat format, const std::vector<const uint8_t*>& rows, int64_t K, int num_threads)
    : memory_(allocated_bytes(format, (int64_t)rows.size(), K)),
      view_{memory_.data(), (int64_t)rows.size(), K, panel_bytes(format, K), format} {
  const int64_t panels = num_panels(), threads = std::clamp<int64_t>(num_threads, 1, std::max<int64_t>(panels, 1));
  const auto pack_share = [&](int64_t t) {
    pack_panels(format, rows.data(), view_.N, K, memory_.data(), panels * t / threads, panels * (t + 1) / threads);
  };
  std::vector<std::thread> others;
  for (int64_t t = 1; t < threads; t++) {
    try {
      others.emplace_back(pack_share, t);
    } catch (const std::system_error&) {  // no more threads to be had
      pack_share(t);
    }
  }
  pack_share(0);
  for (std::thread& other : others) other.join();
}

}  // namespace OCTAVO_NS
