// See kv_ops.h. One warp takes one entry of one head; lists whose length changes from round to round run on a fixed grid.
#include "backend/cuda/kv_ops.h"

#include "backend/cuda/kv_rows.cuh"
#include "backend/cuda/ptx.h"

namespace hunch {
namespace {

constexpr int kWarps = 8;  // of a block
constexpr unsigned kThreads = kWarps * 32;

HUNCH_DEVICE int64_t first_warp() { return int64_t(blockIdx.x) * kWarps + threadIdx.x / 32; }
HUNCH_DEVICE int64_t num_warps() { return int64_t(gridDim.x) * kWarps; }

// As many bytes as a row has, whatever they are aligned to (rows of K and V are multiples of 4 bytes for every shape in use).
HUNCH_DEVICE void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  const int lane = int(threadIdx.x % 32);
  if (bytes % 16 == 0 && (uint64_t(to) | uint64_t(from)) % 16 == 0) {
    for (int64_t i = lane; i < bytes / 16; i += 32) reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  } else {
    for (int64_t i = lane; i < bytes; i += 32) to[i] = from[i];
  }
}

struct StoresDevice {
  const StoreDevice* calls;  // one per row of blocks
};
__global__ void store_kernel(const StoresDevice* args) {
  const StoreDevice a = args->calls[blockIdx.y];
  wait_for_previous();
  let_next_start();
  const int64_t heads = a.plane.kv_heads, at = first_warp();
  if (at >= a.rows * heads * 2) return;
  const int part = int(at % 2), head = int(at / 2 % heads);
  const int64_t row = at / 2 / heads;
  const float* from = part == 0 ? a.k + row * a.k_row + head * a.k_head : a.v + row * a.v_row + head * a.v_head;
  encode_row(
      a.plane.dtype, kv_row(a.plane, a.pages, head, a.first_entry + row, part), a.plane.head_dim, [&](int d) { return from[d]; });
}

struct GatherDevice {
  KvPlane from, to;
  const int32_t *from_pages, *to_pages, *index;
  int64_t list_stride, count, tail_first, total;  // list_stride 0: one list for all
};
__global__ void gather_kernel(const GatherDevice* args) {
  const GatherDevice a = *args;
  wait_for_previous();
  let_next_start();
  const int heads = a.from.kv_heads, dim = a.from.head_dim;
  const int64_t bytes = kv_part_bytes(a.from.dtype, dim);
  for (int64_t at = first_warp(); at < a.total * heads; at += num_warps()) {
    const int head = int(at / a.total);
    const int64_t i = at % a.total;
    const int64_t entry = i < a.count ? a.index[head * a.list_stride + i] : a.tail_first + (i - a.count);
    if (a.from.dtype == a.to.dtype) {  // K and V stand side by side
      const KvRow from = kv_row(a.from, a.from_pages, head, entry, 0), to = kv_row(a.to, a.to_pages, head, i, 0);
      copy_bytes(to.data, from.data, 2 * bytes);
      if (a.from.dtype == DType::Q8_0 && threadIdx.x % 32 < 2) to.scale[threadIdx.x % 32] = from.scale[threadIdx.x % 32];
    } else {
      for (int part = 0; part < 2; ++part) {
        const KvRow from = kv_row(a.from, a.from_pages, head, entry, part);
        encode_row(
            a.to.dtype, kv_row(a.to, a.to_pages, head, i, part), dim, [&](int d) { return kv_element(a.from.dtype, from, d); });
      }
    }
  }
}

struct MoveDevice {
  KvPlane first_layer;
  int64_t layer_bytes;
  const int32_t* pages;
  const int64_t *from, *to;
  int layers, count;
};
constexpr int kMovesAtOnce = 4;
// One warp moves all entries of one layer and head in order. from ascends and to[i] <= from[i], so reading ahead reads nothing
// that an earlier move wrote; a later write may hit what an earlier one read.
__global__ void move_kernel(const MoveDevice* args) {
  const MoveDevice a = *args;
  wait_for_previous();
  let_next_start();
  const int64_t at = first_warp();
  const int heads = a.first_layer.kv_heads, lane = int(threadIdx.x % 32);
  if (at >= int64_t(a.layers) * heads) return;
  KvPlane plane = a.first_layer;
  plane.keys += at / heads * a.layer_bytes;
  const int head = int(at % heads);
  const int64_t words = 2 * kv_part_bytes(plane.dtype, plane.head_dim) / 4;  // of 4 bytes
  for (int first = 0; first < a.count; first += kMovesAtOnce) {
    const int n = min(kMovesAtOnce, a.count - first);
    for (int64_t w = lane; w < words; w += 32) {
      uint32_t bits[kMovesAtOnce];
#pragma unroll
      for (int i = 0; i < kMovesAtOnce; ++i)
        if (i < n) bits[i] = reinterpret_cast<const uint32_t*>(kv_row(plane, a.pages, head, a.from[first + i], 0).data)[w];
#pragma unroll
      for (int i = 0; i < kMovesAtOnce; ++i)
        if (i < n) reinterpret_cast<uint32_t*>(kv_row(plane, a.pages, head, a.to[first + i], 0).data)[w] = bits[i];
    }
    if (plane.dtype == DType::Q8_0 && lane < 2)
      for (int i = 0; i < n; ++i)
        kv_row(plane, a.pages, head, a.to[first + i], lane).scale[0] =
            kv_row(plane, a.pages, head, a.from[first + i], lane).scale[0];
  }
}

struct ShuffleDevice {
  KvPlane first_layer;
  int64_t layer_bytes, first_entry;
  const int32_t *pages, *from, *lengths;
  int count;
};
// Blocks [layer and head][stretch]. Shared memory: the rows that stay, K and V and, for Q8_0, their scales.
__global__ void __launch_bounds__(kThreads) shuffle_kernel(const ShuffleDevice* args) {
  extern __shared__ uint32_t aside[];
  const ShuffleDevice a = *args;
  KvPlane plane = a.first_layer;
  const int head = int(blockIdx.x) % plane.kv_heads;
  plane.keys += int(blockIdx.x) / plane.kv_heads * a.layer_bytes;
  int64_t first = a.first_entry;
  for (int stretch = 0; stretch < int(blockIdx.y); ++stretch) first += a.lengths[stretch];
  const int codes = int(2 * kv_part_bytes(plane.dtype, plane.head_dim) / 4), scales = plane.dtype == DType::Q8_0 ? 2 : 0;
  const int words = codes + scales;  // of 4 bytes
  const auto word = [&](int64_t entry, int at) -> uint32_t& {
    const KvRow row = kv_row(plane, a.pages, head, entry, 0);
    return at < codes ? reinterpret_cast<uint32_t*>(row.data)[at] : reinterpret_cast<uint32_t*>(row.scale)[at - codes];
  };
  wait_for_previous();
  let_next_start();
  for (int i = int(threadIdx.x); i < a.count * words; i += kThreads) aside[i] = word(first + a.from[i / words], i % words);
  __syncthreads();
  for (int i = int(threadIdx.x); i < a.count * words; i += kThreads)
    if (a.from[i / words] != i / words) word(first + i / words, i % words) = aside[i];
}

struct BoundsDevice {
  KvPlane from, to;
  const int32_t *from_pages, *to_pages;
  int64_t first_page, num_pages;
  int page_len;
  bool means;
};
// Rounding to the dtype of `to` keeps what is already exact there.
__global__ void bounds_kernel(const BoundsDevice* args) {
  const BoundsDevice a = *args;
  wait_for_previous();
  let_next_start();
  const int heads = a.from.kv_heads, dim = a.from.head_dim;
  for (int64_t at = first_warp(); at < a.num_pages * heads; at += num_warps()) {
    const int head = int(at / a.num_pages);
    const int64_t page = a.first_page + at % a.num_pages;
    const KvRow to = kv_row(a.to, a.to_pages, head, page, 0);
    for (int d = int(threadIdx.x % 32); d < dim; d += 32) {
      float most = 0, least = 0, sum = 0;
      for (int i = 0; i < a.page_len; ++i) {
        const float x = kv_element(a.from.dtype, kv_row(a.from, a.from_pages, head, page * a.page_len + i, 0), d);
        most = i == 0 ? x : most < x ? x : most;
        least = i == 0 ? x : x < least ? x : least;
        sum += x;
      }
      for (int side = 0; side < (a.means ? 1 : 2); ++side) {
        const float x = a.means ? sum / float(a.page_len) : side == 0 ? most : least;
        const int at_d = side * dim + d;
        if (a.to.dtype == DType::F32) reinterpret_cast<float*>(to.data)[at_d] = x;
        if (a.to.dtype == DType::F16) reinterpret_cast<__half*>(to.data)[at_d] = __float2half_rn(x);
        if (a.to.dtype == DType::BF16) reinterpret_cast<__nv_bfloat16*>(to.data)[at_d] = __float2bfloat16_rn(x);
      }
    }
  }
}

Grid grid_of(int64_t warps, int64_t calls = 1) {
  return {.blocks = dim3(unsigned(std::max<int64_t>(1, (warps + kWarps - 1) / kWarps)), unsigned(calls)), .threads = kThreads};
}
Grid fixed_grid() { return {.blocks = dim3(unsigned(device_facts().num_sms) * 8), .threads = kThreads}; }

}

void enqueue_store_kv(Commands& commands, std::span<const StoreKvArgs> calls) {
  std::vector<StoreDevice> devices;
  int64_t most = 0;
  for (const StoreKvArgs& args : calls) {
    const int64_t rows = args.k.extent[0];
    if (rows == 0) continue;
    devices.push_back(store_device(commands, args));
    most = std::max(most, rows * args.k.extent[1] * 2);
  }
  if (devices.empty()) return;
  commands.launch(
      store_kernel, grid_of(most, std::ssize(devices)), StoresDevice{commands.data(std::span<const StoreDevice>(devices))});
  commands.wrote_rows();
}

void enqueue_gather_kv(Commands& commands, const GatherKvArgs& args) {
  const KvPlane from = kv_plane(args.from, args.layer), to = kv_plane(args.to, args.layer);
  HUNCH_CHECK(from.dtype == to.dtype || to.dtype == DType::Q8_0);
  HUNCH_CHECK(from.kv_heads == to.kv_heads && from.head_dim == to.head_dim);
  commands.begin_op();
  const GatherDevice device{from, to, commands.data(args.from.pages), commands.data(args.to.pages), args.index.data,
      args.index.extent[0] == 1 ? 0 : args.index.stride[0], args.index.extent[1], args.tail_first,
      args.index.extent[1] + args.tail_last - args.tail_first};
  commands.launch(gather_kernel, fixed_grid(), device);
  commands.wrote_cache();
}

void enqueue_move_kv(Commands& commands, const MoveKvArgs& args) {
  if (args.from.empty()) return;
  HUNCH_CHECK(args.from.size() == args.to.size());
  commands.begin_op();
  const KvPlane plane = kv_plane(args.kv, 0);
  HUNCH_CHECK(kv_row_bytes(plane.dtype, plane.head_dim) % 4 == 0);
  const MoveDevice device{plane, plane.head_bytes * plane.kv_heads, commands.data(args.kv.pages), commands.data(args.from),
      commands.data(args.to), args.kv.store->layers, int(args.from.size())};
  commands.launch(move_kernel, grid_of(int64_t(args.kv.store->layers) * plane.kv_heads), device);
  commands.wrote_cache();
}

void enqueue_shuffle_kv(Commands& commands, const ShuffleKvArgs& args) {
  const int64_t count = args.from.extent[0];
  if (count == 0 || args.lengths.empty()) return;
  HUNCH_CHECK(count <= kMostShuffled && args.from.stride[0] == 1);
  for (const int32_t length : args.lengths) HUNCH_CHECK(count <= length);
  commands.begin_op();
  const KvPlane plane = kv_plane(args.kv, 0);
  const size_t row_bytes = 2 * kv_row_bytes(plane.dtype, plane.head_dim);
  HUNCH_CHECK(kv_row_bytes(plane.dtype, plane.head_dim) % 4 == 0);
  const ShuffleDevice device{plane, plane.head_bytes * plane.kv_heads, args.first_entry, commands.data(args.kv.pages),
      args.from.data, commands.data(args.lengths), int(count)};
  commands.launch(shuffle_kernel,
      {.blocks = dim3(unsigned(args.kv.store->layers * plane.kv_heads), unsigned(args.lengths.size())),
          .threads = kThreads,
          .shared_bytes = size_t(count) * row_bytes},
      device);
  commands.wrote_cache();
}

void enqueue_page_bounds(Commands& commands, const PageBoundsArgs& args) {
  const KvPlane from = kv_plane(args.from, args.layer), to = kv_plane(args.to, args.layer);
  HUNCH_CHECK(page_bounds_fit(args));
  commands.begin_op();
  const BoundsDevice device{from, to, commands.data(args.from.pages), commands.data(args.to.pages), args.first_page,
      args.last_page - args.first_page, args.page_len, args.means};
  commands.launch(bounds_kernel, fixed_grid(), device);
  commands.wrote_cache();
}

}
