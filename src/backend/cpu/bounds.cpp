// See bounds.h. An item fills whole pages of the destination store, so that no two threads write neighbouring lanes.
#include "backend/cpu/bounds.h"

#include <algorithm>

#include "backend/cpu/attention.h"
#include "base/check.h"

namespace hunch {

size_t page_bounds(Threads& threads, const BoundsKernels& kernels, const PageBoundsArgs& args) {
  const KvStore &from = *args.from.store, &to = *args.to.store;
  HUNCH_CHECK(to.dtype == from.dtype && to.kv_heads == from.kv_heads && to.head_dim == 2 * from.head_dim);
  HUNCH_CHECK(args.page_len >= 1 && args.last_page <= args.to.pages.extent[0] * kPageLen);
  if (args.first_page >= args.last_page) return 0;
  const int64_t first_chunk = args.first_page / kPageLen, chunks = (args.last_page - 1) / kPageLen + 1 - first_chunk;
  const auto bound_chunk = [&](int64_t index, int) {
    const int head = int(index / chunks);
    const int64_t chunk = first_chunk + index % chunks;
    BoundsItem item;
    item.from = key_plane(args.from, args.layer, head);
    item.to = key_plane(args.to, args.layer, head);
    item.page_len = args.page_len;
    item.first_page = std::max(args.first_page, chunk * kPageLen);
    item.last_page = std::min(args.last_page, (chunk + 1) * kPageLen);
    kernels.bound[int(from.dtype)](item);
  };
  if (args.last_page - args.first_page <= 4) {  // a round's few: done before a fork and join would be
    for (int64_t index = 0; index < chunks * from.kv_heads; ++index) bound_chunk(index, 0);
  } else {
    threads.run(chunks * from.kv_heads, bound_chunk);
  }
  return size_t((args.last_page - args.first_page) * args.page_len * from.kv_heads) * size_t(from.head_dim) *
         dtype_bytes(from.dtype, 1);
}

}  // namespace hunch
