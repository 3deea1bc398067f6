// An item fills whole pages of the destination store, so that no two threads write neighbouring lanes.
#include "backend/cpu/launchers.h"

#include <cstring>

#include "backend/cpu/attention.h"
#include "backend/cpu/kv_store.h"
#include "base/check.h"
#include "base/half.h"

namespace hunch {
namespace {

// Each key of a coded store has its own scale, so codes cannot be compared. Once per key: the loads of attention would not pay.
void bound_codes(const PageBoundsArgs& args, int head, int64_t first_page, int64_t last_page) {
  const auto& from = static_cast<const CpuKvStore&>(*args.from.store);
  auto& to = static_cast<CpuKvStore&>(*args.to.store);
  const KvLayout &keys = from.layout(), &bounds = to.layout();
  const auto chunk_of = [&](const CpuKvStore& store, const KvRef& kv, int64_t entry) {
    return store.plane(args.layer, head) + size_t(kv.pages(entry / kPageLen)) * store.layout().chunk_bytes;
  };
  for (int64_t page = first_page; page < last_page; ++page) {
    std::byte* out = chunk_of(to, args.to, page);
    const auto put = [&](int d, uint16_t bits) {
      std::memcpy(out + bounds.k_offset(int(page % kPageLen), d), &bits, sizeof(bits));
    };
    for (int d = 0; d < keys.head_dim; ++d) {
      float greatest = -INFINITY, least = -greatest, sum = 0;
      for (int64_t entry = page * args.page_len; entry < (page + 1) * args.page_len; ++entry) {
        const std::byte* chunk = chunk_of(from, args.from, entry);
        const int e = int(entry % kPageLen);
        float scale = from.scale(args.layer).k;
        if (is_coded(from.dtype)) std::memcpy(&scale, chunk + keys.k_scale_offset(e), sizeof(scale));
        const float x = scale * keys.key(chunk, e, d);
        greatest = std::max(greatest, x), least = std::min(least, x), sum += x;
      }
      put(d, f32_to_bf16(args.means ? sum / float(args.page_len) : greatest));
      if (!args.means) put(keys.head_dim + d, f32_to_bf16(least));
    }
    for (int d = bounds.head_dim; d < bounds.padded_dim; ++d) put(d, 0);  // K padding is zero
  }
}

}

size_t page_bounds(Threads& threads, const BoundsKernels& kernels, const PageBoundsArgs& args) {
  const KvStore& from = *args.from.store;
  HUNCH_CHECK(page_bounds_fit(args) && args.last_page <= args.to.pages.extent[0] * kPageLen);
  if (args.first_page >= args.last_page) return 0;
  const int64_t first_chunk = args.first_page / kPageLen, chunks = (args.last_page - 1) / kPageLen + 1 - first_chunk;
  const auto bound_chunk = [&](int64_t index, int) {
    const int head = int(index / chunks);
    const int64_t chunk = first_chunk + index % chunks;
    const BoundsItem item{key_plane(args.from, args.layer, head), key_plane(args.to, args.layer, head), args.page_len,
        std::max(args.first_page, chunk * kPageLen), std::min(args.last_page, (chunk + 1) * kPageLen), args.means};
    if (bounds_dtype(from.dtype) != from.dtype) bound_codes(args, head, item.first_page, item.last_page);
    else kernels.bound[int(from.dtype)](item);
  };
  threads.run(chunks * from.kv_heads, bound_chunk, args.last_page - args.first_page <= 4);  // a round's few
  return size_t((args.last_page - args.first_page) * args.page_len * from.kv_heads) * kv_row_bytes(from.dtype, from.head_dim);
}

}
