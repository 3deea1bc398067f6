// See rows.h.
#include "backend/cpu/launchers.h"

#include <cmath>

namespace hunch {
namespace {

constexpr int64_t kForkElements = 32768;  // about 5 us of work: what a fork and join costs, twice

// fn(row) for every row; `cost` is what one row counts as, in elements of plain arithmetic.
template <class F>
void each_row(Threads& threads, int64_t rows, int64_t cost, F&& fn) {
  if (rows * cost < kForkElements) {
    for (int64_t r = 0; r < rows; ++r) fn(r);
    return;
  }
  const int64_t per_item = std::max<int64_t>(1, std::max(rows / (threads.count() * 4), kForkElements / 4 / cost));
  threads.run((rows + per_item - 1) / per_item, [&](int64_t item, int) {
    for (int64_t r = item * per_item; r < std::min(rows, (item + 1) * per_item); ++r) fn(r);
  });
}

}

void norm_rows(Threads& threads, const RowsKernels& kernels, const NormArgs& args) {
  const int64_t n = args.x.extent[1];
  each_row(
      threads, args.x.extent[0], n, [&](int64_t r) { kernels.norm(&args.x(r, 0), args.weight, args.eps, n, &args.out(r, 0)); });
}

void gate_rows(Threads& threads, const RowsKernels& kernels, const GateArgs& args) {
  const int64_t n = args.gate.extent[1];
  const GateClamp& clamp = args.clamp;
  each_row(threads, args.gate.extent[0], 3 * n, [&](int64_t r) {
    const float *gate = &args.gate(r, 0), *up = &args.up(r, 0);
    if (clamp.limit > 0) kernels.gate_clamped(gate, up, n, clamp.limit, clamp.alpha, &args.out(r, 0));
    else kernels.gate(gate, up, n, &args.out(r, 0));
  });
}

// cos and sin of the C library: once a pass, and the same bits as the reference.
void rope_angle_rows(Threads& threads, const RopeAnglesArgs& args) {
  const int64_t half = args.inv_freq.extent[0];
  each_row(threads, args.positions.extent[0], 100 * half, [&](int64_t r) {
    for (int64_t i = 0; i < half; ++i) {
      const float angle = float(args.positions(r)) * args.inv_freq(i);
      args.cos_sin(r, i, 0) = std::cos(angle) * args.magnitude;
      args.cos_sin(r, i, 1) = std::sin(angle) * args.magnitude;
    }
  });
}

void rope_rows(Threads& threads, const RowsKernels& kernels, const RopeArgs& args) {
  const int64_t heads = args.x.extent[1], half = args.cos_sin.extent[1];
  each_row(threads, args.x.extent[0], heads * half * 2, [&](int64_t r) {
    kernels.rope(&args.x(r, 0, 0), heads, args.x.stride[1], &args.cos_sin(r, 0, 0), half, args.pairs == RopePairs::Neighbours);
  });
}

}
