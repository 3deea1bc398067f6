// See unpacked_kv.h.
#include "backend/cuda/unpacked_kv.h"

#include <algorithm>

#include "backend/cuda/attention_codes.cuh"
#include "backend/cuda/spare_memory.h"

namespace hunch {
namespace {

struct UnpackRunDevice {
  KvPlane from;
  const int32_t* pages;
  std::byte* to;                       // [KV head][page]
  int32_t first_page, num_pages, end;  // end: of KV heads times pages of this run and those before it
};
struct UnpackKvDevice {
  const UnpackRunDevice* runs;
  int32_t total;
};

// A block takes a page of a head, a thread 16 codes at a time.
template <bool kIntegers>
__global__ void __launch_bounds__(256) unpack_kv_kernel(const UnpackKvDevice* args) {
  const UnpackKvDevice a = *args;
  wait_for_previous();
  let_next_start();
  for (int at = int(blockIdx.x); at < a.total; at += int(gridDim.x)) {
    const UnpackRunDevice* run = a.runs;
    while (at >= run->end) ++run;
    const int of_run = at - run->end + run->num_pages * run->from.kv_heads;
    const int line = 2 * run->from.head_dim, pieces = line / 16;  // of an entry's K and V
    const std::byte* page = run->from.keys + of_run / run->num_pages * run->from.head_bytes +
        run->pages[run->first_page + of_run % run->num_pages] * run->from.chunk_bytes;
    auto* to = reinterpret_cast<uint4*>(run->to) + int64_t(of_run) * (kPageLen * pieces * 2);
    for (int i = int(threadIdx.x); i < kPageLen * pieces; i += 256) {
      const uint4 c = reinterpret_cast<const uint4*>(page)[i];
      uint32_t scale = 0;
      if (kIntegers)
        scale = __byte_perm(int8_scales(reinterpret_cast<const float2*>(page + kPageLen * line)[i / pieces]), 0,
            i % pieces < pieces / 2 ? 0x1010 : 0x3232);
      to[2 * i] = widened<kIntegers>(c.x, c.y, scale), to[2 * i + 1] = widened<kIntegers>(c.z, c.w, scale);
    }
  }
}

}

std::span<const UnpackedKv::Run> UnpackedKv::enqueue(Commands& commands, int layer, std::span<const AttentionRun* const> runs) {
  const KvStore& first = *runs[0]->kv.store;
  runs_.clear();
  std::vector<UnpackRunDevice> devices;
  int64_t total = 0;
  for (const AttentionRun* run : runs) {
    int64_t least = run->last(0), most = run->last(0);
    for (int64_t row = 1; row < run->num_rows; ++row)
      least = std::min<int64_t>(least, run->last(row)), most = std::max<int64_t>(most, run->last(row));
    const int64_t begin = oldest_entry(*run, least) / kPageLen, pages = std::max<int64_t>(0, most / kPageLen + 1 - begin);
    const KvPlane from = kv_plane(run->kv, layer);
    total += pages * from.kv_heads;
    devices.push_back({from, nullptr, nullptr, int32_t(begin), int32_t(pages), int32_t(total)});
    while (std::ssize(in_order_) < begin + pages) in_order_.push_back(int32_t(in_order_.size()));
  }
  CudaKvStore* const store = store_of(commands, first.head_dim, total);
  if (!store) return {};
  for (size_t r = 0; r < runs.size(); ++r) {
    UnpackRunDevice& device = devices[r];
    KvPlane to = store->plane(0);
    to.kv_heads = device.from.kv_heads, to.scale = device.from.scale;
    to.head_bytes = device.num_pages * to.chunk_bytes, to.head_rows = device.num_pages * int32_t(kPageLen);
    const int64_t begin = device.end - device.num_pages * to.kv_heads, page_0 = begin - device.first_page;
    device.to = to.keys + begin * to.chunk_bytes, device.pages = commands.data(runs[r]->kv.pages);
    to.keys += page_0 * to.chunk_bytes, to.first_row = int32_t(page_0 * kPageLen);
    runs_.push_back({to, commands.data(std::span<const int32_t>(in_order_))});
  }
  const UnpackKvDevice device{commands.data(std::span<const UnpackRunDevice>(devices)), int32_t(total)};
  commands.launch(first.dtype == DType::Q8_0 ? unpack_kv_kernel<true> : unpack_kv_kernel<false>,
      {.blocks = dim3(unsigned(device_facts().num_sms) * 8), .threads = 256}, device);
  commands.wrote_cache();
  return runs_;
}

// With so many pages; nullptr: no memory.
CudaKvStore* UnpackedKv::store_of(Commands& commands, int head_dim, int64_t pages) {
  constexpr int64_t kGrowth = 2048;  // pages: it is seldom made anew
  auto& store = stores_[head_dim / 128];
  if (store && store->num_pages >= pages) return store.get();
  if (pages >= refused_) return nullptr;
  const KvGeometry geometry{DType::F16, 1, 1, head_dim};
  pages = (pages + kGrowth - 1) / kGrowth * kGrowth;
  commands.submit();  // what reads the old one, which goes when that is done
  store = nullptr;
  if (has_spare_memory(CudaKvStore::page_bytes(geometry) * size_t(pages))) store = CudaKvStore::make(commands, geometry, pages);
  if (!store) refused_ = pages;
  return store.get();
}

}
