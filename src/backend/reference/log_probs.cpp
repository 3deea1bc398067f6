// Log-softmax by definition, summed in fp64: contract in backend/ops/log_probs.h.

#include "backend/ops/log_probs.h"

#include <numeric>

#include "backend/reference/reference_backend.h"

namespace hunch {

void ReferenceBackend::log_probs(const LogProbsArgs& args) {
  const int64_t vocab = args.logits.extent[1];
  constexpr float kInf = INFINITY, kNan = NAN;
  for (int64_t r = 0; r < args.logits.extent[0]; ++r) {
    const float* x = &args.logits(r, 0);
    const bool has_nan = std::any_of(x, x + vocab, [](float v) { return std::isnan(v); });
    const bool valid = !has_nan && std::any_of(x, x + vocab, [](float v) { return std::isfinite(v); });
    const float best = *std::max_element(x, x + vocab);
    const auto above_best = [&](int64_t id) { return x[id] == best ? 0.0 : double(x[id]) - double(best); };  // <= 0
    double total = 0;
    for (int64_t id = 0; id < vocab; ++id) total += std::exp(above_best(id));
    const auto value = [&](int64_t id) { return valid ? float(above_best(id) - std::log(total)) : kNan; };

    if (args.ids.data) args.values(r) = value(args.ids(r));
    std::vector<int32_t> order(vocab);
    std::iota(order.begin(), order.end(), 0);
    if (valid) std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return x[a] > x[b]; });
    for (int i = 0; i < args.count; ++i) {
      args.top_ids(r, i) = valid && i < vocab ? order[i] : -1;
      args.top_values(r, i) = !valid ? kNan : i < vocab ? value(order[i]) : -kInf;
    }
  }
}

}
