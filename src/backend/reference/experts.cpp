// Mixtures of experts: contract in backend/ops/experts.h.

#include "backend/ops/experts.h"

#include <algorithm>
#include <cmath>

#include "backend/reference/dot.h"
#include "backend/reference/reference_backend.h"

namespace hunch {
namespace {

// NaN ranks lowest: ids stay valid whatever a row holds.
bool better(float a, float b) { return std::isnan(b) ? !std::isnan(a) : a > b; }

// The k greatest of p, ties to the lower id, ascending. A chosen entry is known by its place in the list: k is small.
void choose(std::span<const float> p, View<int32_t, 1> ids) {
  const int64_t k = ids.extent[0];
  for (int64_t slot = 0; slot < k; ++slot) {
    int32_t best = -1;
    for (int32_t e = 0; e < int32_t(p.size()); ++e) {
      if (std::find(ids.data, ids.data + slot, e) != ids.data + slot) continue;
      if (best < 0 || better(p[size_t(e)], p[size_t(best)])) best = e;
    }
    ids(slot) = best;
  }
  std::sort(ids.data, ids.data + k);
}

}  // namespace

void ReferenceBackend::route(const RouteArgs& args) {
  const bool of_chosen = args.routing == Routing::SoftmaxOfChosen;
  const int64_t n = args.logits.extent[1], k = args.ids.extent[1];
  HUNCH_CHECK(k >= 1 && k <= n && args.shares.extent[1] == k);
  shares_.resize(size_t(n));  // grows with the first pass, then stays
  for (int64_t r = 0; r < args.logits.extent[0]; ++r) {
    const float* logits = &args.logits(r, 0);
    const float greatest = *std::max_element(logits, logits + n);
    float sum = 0;
    for (int64_t e = 0; e < n; ++e) sum += shares_[size_t(e)] = std::exp(logits[e] - greatest);
    for (float& p : shares_) p = of_chosen ? p : p / sum;
    choose(of_chosen ? std::span(logits, size_t(n)) : std::span<const float>(shares_), args.ids[r]);
    float chosen = 0;
    for (int64_t slot = 0; slot < k; ++slot) chosen += args.shares(r, slot) = shares_[size_t(args.ids(r, slot))];
    if (!args.normalise && !of_chosen) continue;
    for (int64_t slot = 0; slot < k; ++slot) args.shares(r, slot) /= chosen;
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

}  // namespace hunch
