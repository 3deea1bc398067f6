// Mixtures of experts: contract in backend/ops/experts.h.

#include "backend/ops/experts.h"

#include "backend/reference/dot.h"
#include "backend/reference/reference_backend.h"

namespace hunch {
namespace {

// NaN ranks lowest: ids stay valid whatever a row holds.
bool better(float a, float b) { return std::isnan(b) ? !std::isnan(a) : a > b; }

// The greatest of n numbers that `open` lets in, ties to the lower one; -1: it lets none in.
template <class Open>
int32_t best_of(const float* p, int64_t n, Open&& open) {
  int32_t best = -1;
  for (int32_t e = 0; e < int32_t(n); ++e)
    if (open(e) && (best < 0 || better(p[e], p[best]))) best = e;
  return best;
}

// The k greatest that `open` lets in, ties to the lower id, ascending. A chosen entry is known by its place in the list: k is
// small.
template <class Open>
void choose(const float* p, int64_t n, View<int32_t, 1> ids, Open&& open) {
  const int64_t k = ids.extent[0];
  for (int64_t slot = 0; slot < k; ++slot)
    ids(slot) = best_of(p, n, [&](int32_t e) { return open(e) && std::find(ids.data, ids.data + slot, e) == ids.data + slot; });
  std::sort(ids.data, ids.data + k);
}

}

// Scratch: shares, what is chosen by, groups and whether they are kept.
void ReferenceBackend::route(const RouteArgs& args) {
  const bool of_chosen = args.routing == Routing::SoftmaxOfChosen, sigmoid = args.routing == Routing::Sigmoid;
  const int64_t n = args.logits.extent[1], k = args.ids.extent[1], groups = args.groups, size = n / groups;
  HUNCH_CHECK(k >= 1 && k <= n && args.shares.extent[1] == k && (sigmoid || !args.bias));
  HUNCH_CHECK(groups == 1 || (!of_chosen && n % groups == 0 && args.groups_kept <= groups && args.groups_kept * size >= k));
  shares_.resize(2 * n + 2 * groups);  // grows with the first pass, then stays
  float *p = shares_.data(), *by = p + n, *goodness = by + n, *kept = goodness + groups;
  for (int64_t r = 0; r < args.logits.extent[0]; ++r) {
    const float* logits = &args.logits(r, 0);
    if (sigmoid) {
      for (int64_t e = 0; e < n; ++e) p[e] = 1 / (1 + std::exp(-logits[e])), by[e] = p[e] + (args.bias ? args.bias[e] : 0);
    } else {
      const float greatest = *std::max_element(logits, logits + n);
      float sum = 0;
      for (int64_t e = 0; e < n; ++e) sum += p[e] = std::exp(logits[e] - greatest);
      for (int64_t e = 0; e < n; ++e) p[e] = of_chosen ? p[e] : p[e] / sum, by[e] = of_chosen ? logits[e] : p[e];
    }
    if (groups > 1) {
      for (int64_t g = 0; g < groups; ++g) {
        const float* own = by + g * size;
        const int32_t first = best_of(own, size, [](int32_t) { return true; });
        const int32_t second = sigmoid ? best_of(own, size, [&](int32_t e) { return e != first; }) : -1;
        goodness[g] = own[first] + (second < 0 ? 0 : own[second]), kept[g] = 0;
      }
      for (int left = args.groups_kept; left > 0; --left)
        kept[best_of(goodness, groups, [&](int32_t g) { return kept[g] == 0; })] = 1;
    }
    choose(by, n, args.ids[r], [&](int32_t e) { return groups == 1 || kept[e / size] != 0; });
    float chosen = 0;
    for (int64_t slot = 0; slot < k; ++slot) chosen += args.shares(r, slot) = p[args.ids(r, slot)];
    if (sigmoid) chosen += 1e-20f;  // the published guard; sums are far above it
    for (int64_t slot = 0; slot < k; ++slot) {
      float& share = args.shares(r, slot);
      if (args.normalise || of_chosen) share /= chosen;
      if (args.scale != 1) share *= args.scale;
    }
  }
}

void ReferenceBackend::experts(const ExpertsArgs& args) {
  const int64_t rows = args.x.extent[0], hidden = args.x.extent[1], k = args.ids.extent[1];
  for (size_t e = 0; e < args.experts.size(); ++e) {  // ascending, and so for every row
    const auto& gate = static_cast<const ReferenceWeight&>(*args.experts[e].gate);
    const auto& up = static_cast<const ReferenceWeight&>(*args.experts[e].up);
    const auto& down = static_cast<const ReferenceWeight&>(*args.experts[e].down);
    HUNCH_CHECK(gate.in_dim == hidden && down.out_dim == hidden && args.gate.extent[1] == gate.out_dim);
    bool read = false;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t slot = 0; slot < k; ++slot) {
        if (args.ids(r, slot) != int32_t(e)) continue;
        const Expert& expert = args.experts[e];
        for (int64_t i = 0; i < gate.out_dim; ++i) {
          args.gate(r, i) = dot(&args.x(r, 0), gate.row(i), hidden) + (expert.gate_bias ? expert.gate_bias[i] : 0.0f);
          args.up(r, i) = dot(&args.x(r, 0), up.row(i), hidden) + (expert.up_bias ? expert.up_bias[i] : 0.0f);
        }
        const auto gated = args.gate.slice(r, 1);
        ReferenceBackend::gate({.gate = gated, .up = args.up.slice(r, 1), .out = gated, .clamp = args.clamp});
        for (int64_t i = 0; i < hidden; ++i)
          args.out(r, i) += args.shares(r, slot) *
              (dot(&args.gate(r, 0), down.row(i), down.in_dim) + (expert.down_bias ? expert.down_bias[i] : 0.0f));
        read = true;
      }
    if (!read) continue;
    counters_.weight_bytes += gate.bytes + up.bytes + down.bytes;
    ++counters_.experts_read;
  }
}

}
