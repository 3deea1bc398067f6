// Selection of the k best entries: contract in backend/ops/top_k.h.

#include "backend/ops/top_k.h"

#include <numeric>

#include "backend/reference/reference_backend.h"

namespace hunch {

float ReferenceBackend::dilation_factor(int steps) {
  double factor = 1;
  for (int i = 0; i < steps; ++i) factor *= 0.98;
  return float(factor);
}

void ReferenceBackend::top_k(const TopKArgs& args) {
  HUNCH_CHECK(args.count >= 1 && args.count <= args.n);
  if (!args.scores.data) {
    HUNCH_CHECK(args.count == args.sinks + args.recent && args.block == 1);
    for (int64_t set = 0; set < args.index.extent[0]; ++set)
      for (int64_t i = 0; i < args.count; ++i) args.index(set, i) = int32_t(i < args.sinks ? i : args.n - args.count + i);
    return;
  }
  counters_.score_bytes += size_t(args.scores.extent[0]) * args.n * sizeof(float);
  std::vector<float> scores(args.n);
  std::vector<int32_t> order(args.n);
  for (int64_t set = 0; set < args.scores.extent[0]; ++set) {
    std::copy_n(&args.scores(set, 0), args.n, scores.begin());
    for (int reach = 0; reach < args.spread;) {
      const int step = std::min(reach + 1, args.spread - reach);
      const float factor = dilation_factor(step);
      for (int64_t j = args.n - 1; j >= step; --j) {  // descending: j - step still holds its value of the last round
        const float moved = factor * scores[j - step];
        if (moved > scores[j]) scores[j] = moved;
      }
      reach += step;
    }
    for (int64_t j = 0; j < args.n; ++j)
      if (j < args.sinks || j >= args.n - args.recent) scores[j] = INFINITY;
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int32_t a, int32_t b) {
      const float x = scores[a], y = scores[b];
      return std::isnan(y) ? !std::isnan(x) : x > y;
    });
    std::sort(order.begin(), order.begin() + args.count);
    for (int64_t i = 0; i < args.count * args.block; ++i)
      args.index(set, i) = order[i / args.block] * args.block + int32_t(i % args.block);
  }
}

void ReferenceBackend::reduce_scores(const ReduceScoresArgs& args) {
  HUNCH_CHECK(args.pool % 2 == 1 && (args.pool == 1 || args.block == 1));
  const int64_t reach = args.pool / 2;
  for (int64_t set = 0; set < args.scores.extent[0]; ++set) {
    const float* from = &args.scores(set, 0);
    if (args.block > 1) {
      for (int64_t b = 0; b < args.n / args.block; ++b)
        args.out(set, b) = *std::max_element(from + b * args.block, from + (b + 1) * args.block);
      continue;
    }
    for (int64_t j = 0; j < args.n; ++j) {
      float sum = 0;
      for (int64_t i = std::max<int64_t>(0, j - reach); i <= std::min(args.n - 1, j + reach); ++i) sum += from[i];
      args.out(set, j) = sum / float(args.pool);
    }
  }
}

}
