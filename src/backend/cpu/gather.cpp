// An item fills whole destination pages, so that no two threads touch one K tile.
#include "backend/cpu/launchers.h"

#include "backend/cpu/attention.h"
#include "base/check.h"

namespace hunch {
namespace {
constexpr int64_t kItemEntries = 4 * kPageLen;
}

size_t gather_kv(Threads& threads, const GatherKernels& kernels, const GatherKvArgs& args) {
  const KvStore &from = *args.from.store, &to = *args.to.store;
  HUNCH_CHECK(from.dtype == to.dtype || to.dtype == DType::Q8_0);
  HUNCH_CHECK(from.kv_heads == to.kv_heads && from.head_dim == to.head_dim);
  const int64_t count = args.index.extent[1], total = count + std::max<int64_t>(0, args.tail_last - args.tail_first);
  if (total == 0) return 0;
  HUNCH_CHECK(total <= args.to.pages.extent[0] * kPageLen);
  const int64_t stretches = (total + kItemEntries - 1) / kItemEntries;
  std::atomic<size_t> bytes{0};
  threads.run(stretches * from.kv_heads, [&](int64_t index, int) {
    const int head = int(index / stretches);
    GatherItem item{.from = key_plane(args.from, args.layer, head), .to = key_plane(args.to, args.layer, head)};
    item.index = count > 0 ? &args.index(args.index.extent[0] == 1 ? 0 : head, 0) : nullptr;
    item.count = count, item.tail_first = args.tail_first;
    item.first = index % stretches * kItemEntries;
    item.last = std::min(item.first + kItemEntries, total);
    const auto kernel = from.dtype == to.dtype ? kernels.gather[int(from.dtype)] : kernels.gather_coded[int(from.dtype)];
    bytes.fetch_add(kernel(item), std::memory_order_relaxed);
  });
  return bytes.load();
}

}
