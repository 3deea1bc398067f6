// An item is one set.
#include "backend/cpu/launchers.h"

#include "backend/reference/reference_backend.h"
#include "base/check.h"

namespace hunch {

void top_k(Threads& threads, const TopKKernels& kernels, const TopKArgs& args) {
  HUNCH_CHECK(args.count >= 1 && args.count <= args.n && args.n < (int64_t(1) << 31) && args.spread >= 0);
  std::array<float, 64> factors;  // doubling: at most one more step than the spread has bits
  int steps = 0, widest = 0;
  for (int reach = 0; reach < args.spread; ++steps) {
    const int step = std::min(reach + 1, args.spread - reach);
    factors[steps] = ReferenceBackend::dilation_factor(step);
    widest = std::max(widest, step);
    reach += step;
  }
  TopKItem item;
  item.n = args.n, item.count = args.count;
  item.spread = args.spread, item.sinks = args.sinks, item.recent = args.recent;
  item.factors = factors.data();
  item.reach = std::max(16, (widest + 15) / 16 * 16);
  threads.reserve(top_k_scratch_bytes(item.n, item.reach));
  threads.run(args.scores.extent[0], [&](int64_t set, int worker) {
    TopKItem own = item;
    own.scores = &args.scores(set, 0);
    own.index = &args.index(set, 0);
    own.scratch = threads.scratch(worker);
    kernels.select(own);
    for (int64_t i = args.count * args.block - 1; i >= 0 && args.block > 1; --i)  // from the back: what is read still stands
      own.index[i] = own.index[i / args.block] * args.block + int32_t(i % args.block);
  });
}

}
