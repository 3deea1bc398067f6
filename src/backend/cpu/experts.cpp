// A row's sum does not depend on the rows beside it: its products have the same bits in any company (ops/matmul.h), and shares
// are added in ascending order of experts' ids.
#include "backend/cpu/experts.h"

#include "backend/cpu/launchers.h"

namespace hunch {
namespace {

constexpr int64_t kAlone = 16;  // rows that the caller copies or adds faster than a fork and join takes

}

// Counting sort of the (row, expert) pairs: stable, so that rows stay in order.
void CpuExperts::sort(const ExpertsArgs& args) {
  const int64_t rows = args.ids.extent[0], k = args.ids.extent[1];
  first_.assign(args.experts.size() + 1, 0);
  pairs_.resize(std::max(pairs_.size(), size_t(rows * k)));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t slot = 0; slot < k; ++slot) {
      HUNCH_DCHECK(args.ids(r, slot) < int32_t(args.experts.size()));
      if (args.ids(r, slot) >= 0) ++first_[size_t(args.ids(r, slot)) + 1];
    }
  for (size_t e = 0; e < args.experts.size(); ++e) first_[e + 1] += first_[e];
  const int64_t total = first_.back();
  for (int64_t r = rows - 1; r >= 0; --r)  // from the back: first_[e + 1] goes down to where the pairs of e begin
    for (int64_t slot = 0; slot < k; ++slot)
      if (args.ids(r, slot) >= 0) pairs_[--first_[size_t(args.ids(r, slot)) + 1]] = {int32_t(r), args.shares(r, slot)};
  std::rotate(first_.begin(), first_.begin() + 1, first_.end());
  first_.back() = total;
}

CpuExperts::Read CpuExperts::experts(const ExpertsArgs& args) {
  const int64_t hidden = args.x.extent[1];
  sort(args);
  Read read;
  for (size_t e = 0; e < args.experts.size(); ++e) {
    const Pair* pairs = pairs_.data() + first_[e];
    const int64_t rows = first_[e + 1] - first_[e];
    if (rows == 0) continue;
    View<const float, 2> x = args.x.slice(pairs[0].row, 1);  // one row is multiplied where it lies
    if (rows > 1) {
      const auto gather = [&](int64_t i, int) { std::copy_n(&args.x(pairs[i].row, 0), hidden, &args.gathered(i, 0)); };
      threads_.run(rows, gather, rows <= kAlone);
      x = args.gathered.slice(0, rows);
    }
    const auto gate = args.gate.slice(0, rows), up = args.up.slice(0, rows), product = args.product.slice(0, rows);
    const Expert& expert = args.experts[e];
    const Product both[] = {{expert.gate, expert.gate_bias, gate}, {expert.up, expert.up_bias, up}};
    read.bytes += matmul_.matmul({.x = x, .products = both});
    gate_rows(threads_, kernels_, {.gate = gate, .up = up, .out = gate, .clamp = args.clamp});
    const Product down[] = {{expert.down, expert.down_bias, product}};
    read.bytes += matmul_.matmul({.x = gate, .products = down});
    const auto add = [&](int64_t i, int) {
      const float share = pairs[i].share;
      float* out = &args.out(pairs[i].row, 0);
      const float* y = &product(i, 0);
      for (int64_t j = 0; j < hidden; ++j) out[j] += share * y[j];
    };
    threads_.run(rows, add, rows <= kAlone);
    ++read.experts;
  }
  return read;
}

}
