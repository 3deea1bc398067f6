#include "model/index_sharing.h"

namespace hunch {
namespace {

constexpr int kMostListed = 32;  // blocks that every backend takes in a list

}

bool IndexSharing::any() const { return shares() || layers_reused() > 0; }

int IndexSharing::layers_reused() const { return int(std::ranges::count(reused, uint8_t(1))); }

void traverse(std::span<const int32_t> parents, int rows, bool depth_first, std::vector<int>& order) {
  order.clear();
  if (parents.empty()) {
    for (int row = 0; row < rows; ++row) order.push_back(row);
    return;
  }
  // Row 0 is the root; parents stand in front of their children.
  order.push_back(0);
  for (size_t at = 0; at < order.size(); ++at) {
    size_t to = depth_first ? at + 1 : order.size();
    for (int row = 1; row < rows; ++row)
      if (parents[row] == order[at]) order.insert(order.begin() + ptrdiff_t(to++), row);
  }
  HUNCH_CHECK(int(order.size()) == rows);
}

int chooser_of(std::span<const int> rows, View<const int32_t, 1> positions) {
  return *std::ranges::max_element(rows, [&](int a, int b) { return positions(a) < positions(b); });
}

int shared_list_len(const NsaShape& s) {
  return std::max(s.sel_count, std::min(kMostListed, s.sel_count + s.init_blocks + s.local_blocks));
}

void take_shared(const NsaShape& s, int64_t position, const int32_t* chosen, int32_t* out) {
  const int64_t own = position / s.sel_block;
  const int len = shared_list_len(s);
  int count = 0;
  for (int64_t j = 0; j < std::min<int64_t>(s.init_blocks, own + 1); ++j) out[count++] = int32_t(j);
  for (int64_t j = std::max<int64_t>(s.init_blocks, own + 1 - s.local_blocks); j <= own; ++j) out[count++] = int32_t(j);
  for (int i = 0, forced = count; i < s.sel_count && count < len; ++i)
    if (chosen[i] >= 0 && chosen[i] <= own && std::find(out, out + forced, chosen[i]) == out + forced) out[count++] = chosen[i];
  std::sort(out, out + count);
  std::fill(out + count, out + len, -1);
}

}
