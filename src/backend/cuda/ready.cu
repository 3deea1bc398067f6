// See ready.h. A warp a head of a row, of Q, K or V, or a row to copy.
#include "backend/cuda/ready.h"

#include "backend/cuda/kv_ops.h"
#include "backend/cuda/kv_rows.cuh"
#include "backend/cuda/ptx.h"
#include "backend/cuda/small.h"

namespace hunch {
namespace {

constexpr int kWarps = 4;              // of a block
constexpr int kPairs = 8, kRest = 16;  // at most, of a lane
constexpr int64_t kMostColumns = 512;  // of a row that is copied by a warp

struct ReadyPart {
  float* x;
  const float* weight;  // null: no norm
  int64_t row_stride, head_stride;
  int heads;
};
struct CopiedRow {
  const float* from;
  float* to;
  int64_t columns;
};
struct ReadyDevice {
  ReadyPart parts[2];  // Q, K
  const float* cos_sin;
  int64_t angle_stride;
  int rows, dim, half, halves;
  float eps;
  const StoreDevice* stores;
  const int32_t* store_of_row;  // and its first row at [rows + row]; -1: none
  int value_heads;              // 0: nothing is stored
  int copies;
  const CopiedRow* copied;
};

HUNCH_DEVICE void store_row(const StoreDevice& store, int64_t row, int head, int part, const float* from) {
  encode_row(store.plane.dtype, kv_row(store.plane, store.pages, head, store.first_entry + row, part), store.plane.head_dim,
      [&](int d) { return from[d]; });
}

// Lane l holds the pairs l, l + 32, ... and what lies behind the rotated part. kept: the head as it is now.
template <int kMostPairs, int kMostRest>
HUNCH_DEVICE void ready_head(const ReadyDevice& a, const ReadyPart& part, int64_t row, int head, float* kept) {
  const int lane = int(threadIdx.x % 32);
  float* x = part.x + row * part.row_stride + head * part.head_stride;
  const auto first_of = [&](int i) { return a.halves ? i : 2 * i; };
  const auto second_of = [&](int i) { return a.halves ? i + a.half : 2 * i + 1; };
  float first[kMostPairs], second[kMostPairs], rest[kMostRest + 1], sum = 0;
#pragma unroll
  for (int p = 0; p < kMostPairs; ++p) {
    const int i = lane + 32 * p;
    first[p] = i < a.half ? x[first_of(i)] : 0, second[p] = i < a.half ? x[second_of(i)] : 0;
    sum = fmaf(first[p], first[p], sum), sum = fmaf(second[p], second[p], sum);
  }
#pragma unroll
  for (int p = 0; p < kMostRest; ++p) {
    const int d = 2 * a.half + lane + 32 * p;
    rest[p] = d < a.dim ? x[d] : 0;
    sum = fmaf(rest[p], rest[p], sum);
  }
  float scale = 1;
  if (part.weight) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    scale = 1 / sqrtf(sum / float(a.dim) + a.eps);
  }
  const auto normed = [&](float value, int d) { return part.weight ? value * scale * part.weight[d] : value; };
  const auto put = [&](int d, float value) { x[d] = kept[d] = value; };
  const float* angles = a.cos_sin + row * a.angle_stride;
#pragma unroll
  for (int p = 0; p < kMostPairs; ++p) {
    const int i = lane + 32 * p;
    if (i >= a.half) continue;
    const float cos = angles[2 * i], sin = angles[2 * i + 1];
    const float u = normed(first[p], first_of(i)), v = normed(second[p], second_of(i));
    put(first_of(i), u * cos - v * sin), put(second_of(i), v * cos + u * sin);
  }
#pragma unroll
  for (int p = 0; p < kMostRest; ++p) {
    const int d = 2 * a.half + lane + 32 * p;
    if (d < a.dim) put(d, normed(rest[p], d));
  }
}

template <int kMostPairs, int kMostRest>
__global__ void __launch_bounds__(kWarps * 32) ready_kernel(const ReadyDevice* args) {
  extern __shared__ float heads_as_they_are[];
  const ReadyDevice a = *args;
  let_next_start();
  const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32);
  int at = int(blockIdx.x) * kWarps + warp;  // 32 bits: divided below, which is a good part of the work of many rows
  const int turned = a.parts[0].heads + a.parts[1].heads, heads = turned + a.value_heads;
  if (at >= a.rows * heads) {
    at -= a.rows * heads;
    if (at >= a.copies) return;
    const CopiedRow copy = a.copied[at];
    wait_for_previous();
    for (int64_t i = lane; i < copy.columns; i += 32) copy.to[i] = copy.from[i];
    return;
  }
  const int row = at / heads;
  int head = at - row * heads;
  const bool query = head < a.parts[0].heads;
  const int which = query || a.value_heads == 0 ? -1 : a.store_of_row[row];
  const int of_store = which < 0 ? 0 : row - a.store_of_row[a.rows + row];
  wait_for_previous();
  float* const kept = heads_as_they_are + warp * a.dim;
  if (query) return ready_head<kMostPairs, kMostRest>(a, a.parts[0], row, head, kept);
  head -= a.parts[0].heads;
  if (head < a.parts[1].heads) {
    ready_head<kMostPairs, kMostRest>(a, a.parts[1], row, head, kept);
    __syncwarp();
    if (which >= 0) store_row(a.stores[which], of_store, head, 0, kept);
  } else if (which >= 0) {
    head -= a.parts[1].heads;
    const StoreDevice& store = a.stores[which];
    store_row(store, of_store, head, 1, store.v + of_store * store.v_row + head * store.v_head);
  }
}

}

void CudaReady::enqueue(
    Commands& commands, const ReadyHeadsArgs& args, std::span<const StoreKvArgs> stores, std::span<const CopyRowsArgs> copies) {
  const int64_t rows = args.q.extent[0], dim = args.q.extent[2], half = args.cos_sin.extent[1];
  HUNCH_CHECK(rows > 0 && half <= 32 * kPairs && dim - 2 * half <= 32 * kRest && args.k.extent[2] == dim);
  HUNCH_CHECK(args.q.stride[2] == 1 && args.k.stride[2] == 1 && args.cos_sin.stride[1] == 2 && args.cos_sin.stride[2] == 1);
  const auto part = [](const View<float, 3>& x, const float* weight) {
    return ReadyPart{x.data, weight, x.stride[0], x.stride[1], int(x.extent[1])};
  };
  ReadyDevice device{{part(args.q, args.q_norm), part(args.k, args.k_norm)}, args.cos_sin.data, args.cos_sin.stride[0], int(rows),
      int(dim), int(half), args.pairs == RopePairs::Halves, float(args.eps)};

  store_of_row_.assign(2 * rows, -1), other_stores_.clear(), other_copies_.clear();
  std::vector<StoreDevice> stored;
  stored.reserve(stores.size());
  for (const StoreKvArgs& store : stores) {
    const int64_t stride = std::max<int64_t>(1, args.k.stride[0]);  // 0: without keys
    const int64_t from = store.k.data - args.k.data, first = from / stride, end = first + store.k.extent[0];
    bool mine = from >= 0 && from % stride == 0 && end <= rows && store.k.stride == args.k.stride;
    for (int64_t row = first; mine && row < end; ++row) mine = store_of_row_[row] < 0;
    if (!mine) {
      other_stores_.push_back(store);
      continue;
    }
    for (int64_t row = first; row < end; ++row)
      store_of_row_[row] = int32_t(stored.size()), store_of_row_[rows + row] = int32_t(first);
    stored.push_back(store_device(commands, store));
  }
  std::vector<CopiedRow> copied;
  for (const CopyRowsArgs& copy : copies) {
    if (copy.index.data || copy.to.extent[1] > kMostColumns) {
      other_copies_.push_back(copy);
      continue;
    }
    const bool one = copy.from.extent[0] == 1;
    HUNCH_CHECK(copy.from.extent[1] == copy.to.extent[1] && (one || copy.from.extent[0] == copy.to.extent[0]));
    for (int64_t row = 0; row < copy.to.extent[0]; ++row)
      copied.push_back({&copy.from(one ? 0 : row, 0), &copy.to(row, 0), copy.to.extent[1]});
  }
  device.stores = commands.data(std::span<const StoreDevice>(stored));
  device.store_of_row = commands.data(std::span<const int32_t>(store_of_row_));
  device.value_heads = stored.empty() ? 0 : int(args.k.extent[1]);
  device.copies = int(copied.size()), device.copied = commands.data(std::span<const CopiedRow>(copied));
  const int64_t warps = grid_rows(rows) * (args.q.extent[1] + args.k.extent[1] + device.value_heads) + grid_rows(device.copies);
  HUNCH_CHECK(warps < INT32_MAX);
  const Grid grid{.blocks = dim3(unsigned((warps + kWarps - 1) / kWarps)),
      .threads = kWarps * 32,
      .shared_bytes = size_t(kWarps * dim) * sizeof(float)};
  if (half <= 64 && dim == 2 * half) commands.launch(ready_kernel<2, 0>, grid, device);
  else commands.launch(ready_kernel<kPairs, kRest>, grid, device);
  if (!stored.empty()) commands.wrote_rows();
  if (!other_stores_.empty()) enqueue_store_kv(commands, other_stores_);
  if (!other_copies_.empty()) enqueue_copy_rows(commands, other_copies_);
}

}
