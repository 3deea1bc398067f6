#include "backend/ops/thin.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

namespace hunch {
namespace {

// Slots by weight, ascending; of equal ones the first.
std::vector<int64_t> ascending(View<const float, 1> shares) {
  std::vector<int64_t> order(shares.extent[0]);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return shares(a) < shares(b); });
  return order;
}

float sum_of(View<const float, 1> shares) {
  float sum = 0;
  for (int64_t i = 0; i < shares.extent[0]; ++i) sum += shares(i);
  return sum;
}

// How many of the least weights fit into a share of all.
int64_t within(View<const float, 1> shares, std::span<const int64_t> least, float mass) {
  float gone = 0;
  for (size_t i = 0; i < least.size(); ++i) {
    gone += shares(least[i]);
    if (!(gone <= mass * sum_of(shares))) return int64_t(i);
  }
  return std::ssize(least);
}

}

std::optional<ExpertSkip> expert_skip_named(std::string_view name) {
  constexpr std::string_view kNames[] = {"literal", "graded", "tail_mass", "union_aware"};
  for (int i = 0; i < 4; ++i)
    if (name == kNames[i]) return ExpertSkip(i);
  return {};
}

void thin_channels(const ThinChannelsArgs& args) {
  const int64_t rows = args.gate.extent[0];
  for (int64_t i = 0; i < args.gate.extent[1]; ++i) {
    int64_t below = 0;
    for (int64_t r = 0; r < rows; ++r) {
      float& x = args.gate(r, i);
      const bool small = std::fabs(x / (1.0f + std::exp(-x))) < args.threshold;
      below += small;
      if (small && args.by_row) x = 0;
    }
    *args.below += below, *args.skipped += below == rows;
    for (int64_t r = 0; below == rows && r < rows; ++r) args.gate(r, i) = 0;
  }
}

std::vector<float> tail_ratios(View<const float, 1> shares) {
  const auto order = ascending(shares);
  const float all = sum_of(shares);
  std::vector<float> out(order.size() - 1);
  float sum = 0;
  for (size_t j = 0; j + 1 < order.size(); ++j) {
    sum += shares(order[j]);
    out[order.size() - 2 - j] = sum / all;
  }
  return out;
}

void thin_experts(const ThinExpertsArgs& rule) {
  using Mode = ExpertSkip;
  const auto& ids = rule.ids;
  const auto& shares = rule.shares;
  const int64_t rows = ids.extent[0], k = ids.extent[1], most = std::min<int64_t>(rule.most, k - 1);
  if (most <= 0) return;
  std::vector<int> users;  // rows of each expert
  if (rule.mode == Mode::UnionAware)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t slot = 0; slot < k; ++slot) {
        users.resize(std::max(users.size(), size_t(ids(r, slot)) + 1));
        ++users[ids(r, slot)];
      }
  for (int64_t r = 0; r < rows; ++r) {
    const View<float, 1> row = shares[r];
    auto least = ascending(row);
    int64_t count = 0;
    if (rule.mode == Mode::Literal || rule.mode == Mode::Graded) {
      const auto ratios = tail_ratios(row);
      // ratio_i falls with i: if the condition holds for any i of the literal rule's one threshold, it holds for m.
      for (int64_t i = rule.mode == Mode::Literal ? most : 1; i <= most; ++i)
        if (ratios[i - 1] < rule.betas[i - 1]) count = i;
    } else {
      if (rule.mode == Mode::UnionAware) std::erase_if(least, [&](int64_t slot) { return users[ids(r, slot)] > 1; });
      least.resize(std::min(least.size(), size_t(most)));
      count = within(row, least, rule.mass);
    }
    if (count == 0) continue;
    const float all = sum_of(row);
    for (int64_t i = 0; i < count; ++i) ids(r, least[i]) = -1, row(least[i]) = 0;
    *rule.skipped += count;
    if (!rule.renorm) continue;
    const float stays = sum_of(row);
    for (int64_t slot = 0; slot < k && stays > 0; ++slot) row(slot) *= all / stays;
  }
}

}
