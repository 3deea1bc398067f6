// See chunk_products.h. Activations are the tensor cores' first operand here, 64 rows a warpgroup, and weights the second, 256
// features: sums are the same bits whichever comes first (matmul_test.cpp). A block has 128 rows of 256 features; the two of a
// cluster are neighbours in rows, and each fetches half of the weights for both.
//   warps 0..7   consumers, a warpgroup 64 rows
//   warp 8       fills stages: 64 inputs of 256 features and of 128 rows
// Of weights in runs a thread's 128 sums leave registers for half of the total; the other half waits in shared memory, a stage
// less. Of a gate the first 128 features are its own and the others what it lets through, so that a thread has both of an
// element.
#include "backend/cuda/chunk_products.h"

#include "backend/cuda/decode.cuh"
#include "backend/cuda/gate.cuh"
#include "backend/cuda/ptx.h"

namespace hunch {
namespace {

constexpr int kTile = 64 * 64 * 2, kTiles = 4, kRowTiles = 2;  // bytes; of features and of rows, in a block
constexpr int kStage = (kTiles + kRowTiles) * kTile, kSums = 128;
constexpr int kClusterRows = 256;

enum class Form { OneRun, Runs, Gated };
constexpr int stages_of(Form form) { return form == Form::Runs ? 3 : 4; }
constexpr int aside_of(Form form) { return form == Form::Runs ? 64 * 1024 : form == Form::Gated ? 32 * 1024 : 0; }
constexpr int shared_of(Form form) { return kHeadBytes + stages_of(form) * kStage + aside_of(form); }

HUNCH_DEVICE void add_two(float* to, float2 x) {
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x.x), "f"(x.y) : "memory");
}
HUNCH_DEVICE void copy_from_shared(std::byte* to, uint32_t from, int bytes) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(to), "r"(from), "r"(bytes)
      : "memory");
}

// The units of a cluster: bands of rows, so that those which run together share both weights and activations.
struct Units {
  const ProductsOnDevice& a;
  int unit = int(blockIdx.x) / 2, group = 0, row = 0;  // the block's first row

  __device__ explicit Units(const ProductsOnDevice& args) : a(args) { open(); }
  __device__ bool valid() const { return unit < a.units; }
  __device__ void next() { unit += int(gridDim.x) / 2, open(); }
  __device__ void open() {
    const int in_band = a.groups * a.row_band, band = unit / in_band, i = unit - band * in_band;
    const int left = a.row_tiles - band * a.row_band, width = left < a.row_band ? left : a.row_band;
    row = (band * a.row_band + i % width) * kClusterRows + int(blockIdx.x) % 2 * (kClusterRows / 2);
    group = i / width;
  }
};

template <Form kForm>
HUNCH_DEVICE void fill_stages(const ProductsOnDevice& a, uint32_t memory, uint32_t full, uint32_t empty) {
  constexpr int kHalf = kTiles / 2;
  const int lane = int(threadIdx.x) % 32, rank = int(blockIdx.x) % 2;
  const uint64_t policy = policy_normal();
  int stage = 0, steps = 0;
  uint32_t phase = 0;
  for (Units at(a); at.valid(); at.next()) {
    const std::byte* from = a.packed_x + int64_t(at.row) * 128;
    if (lane < kHalf) {
      int tile = kForm == Form::Gated ? at.group * kHalf + lane : at.group * kTiles + rank * kHalf + lane;
      if (tile >= a.num_tiles) tile = 0;  // any: nobody looks
      const ProductOnDevice& p = kForm == Form::Gated ? a.products[rank] : product_of(a, tile);
      from = p.tiles + int64_t(tile) * a.num_records * kTile;
    }
    for (int record = 0; record < a.num_records; ++record, ++steps) {
      if (steps >= stages_of(kForm)) barrier_wait(empty + uint32_t(stage * 8), phase ^ 1);
      const uint32_t to = memory + uint32_t(stage * kStage), barrier = full + uint32_t(stage * 8);
      if (lane == 0) barrier_arrive_and_expect(barrier, kStage);
      __syncwarp();
      if (lane < kHalf) {
        copy_to_blocks(to + uint32_t((rank * kHalf + lane) * kTile), from, kTile, barrier, 3, policy);
        from += kTile;
      } else if (lane == kHalf) {
        copy_to_shared(to + kTiles * kTile, from, kRowTiles * kTile, barrier, policy);
        from += int64_t(a.x_blocks) * 1024;
      }
      if (++stage == stages_of(kForm)) stage = 0, phase ^= 1;
    }
  }
}

// Where a thread's sums of a tile go: of rows `row` and `row` + 8 two features of every eight.
struct Places {
  float* at = nullptr;
  const float* bias;
  int64_t down;
  float unit;
  int left;  // features from the thread's first
  bool rows[2], accumulate;

  HUNCH_DEVICE Places(const ProductsOnDevice& a, int tile, int row, int t) {
    if (tile >= a.num_tiles) return;
    const ProductOnDevice& p = product_of(a, tile);
    const int feature = tile * 64 + t % 4 * 2;
    at = p.out + row * p.out_stride + feature, bias = p.bias ? p.bias + feature : nullptr;
    down = 8 * p.out_stride, unit = a.unit, left = p.out_dim - feature;
    rows[0] = row < a.rows, rows[1] = row + 8 < a.rows, accumulate = a.accumulate;
  }
  // Of features 8 `eight` on.
  HUNCH_DEVICE void write(int eight, const float* sums) const {
    if (!at || 8 * eight >= left) return;
    const float low = bias ? bias[8 * eight] : 0.0f, high = bias ? bias[8 * eight + 1] : 0.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      auto* to = reinterpret_cast<float2*>(at + 8 * eight + i * down);
      const float2 x{sums[2 * i] * unit + low, sums[2 * i + 1] * unit + high};
      if (!rows[i]) continue;
      if (accumulate) add_two(&to->x, x);
      else *to = x;
    }
  }
};

// The other half of the total: this run's added, or written if it is the last.
HUNCH_DEVICE void add_aside(
    const float* sums, uint32_t aside, bool first, bool last, const ProductsOnDevice& a, int tile, int row, int t) {
#pragma unroll
  for (int i = 0; i < kTiles / 2; ++i) {
    const Places places(a, last ? tile + i : a.num_tiles, row, t);
#pragma unroll
    for (int eight = 0; eight < 8; ++eight) {
      const float* x = sums + (i * 8 + eight) * 4;
      const uint32_t at = aside + uint32_t((i * 8 + eight) * 128 * 16);
      float total[4] = {x[0], x[1], x[2], x[3]};
      if (!first) {
        const uint4 old = load_16(at);
        total[0] = __uint_as_float(old.x) + x[0], total[1] = __uint_as_float(old.y) + x[1];
        total[2] = __uint_as_float(old.z) + x[2], total[3] = __uint_as_float(old.w) + x[3];
      }
      if (last) places.write(eight, total);
      else
        asm volatile(
            "st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(total[0]), "f"(total[1]), "f"(total[2]), "f"(total[3])
            : "memory");
    }
  }
}

// silu(gate) * up as rows of bf16 to shared memory, [part][8 blocks of 8 rows], and from there to `gated`.
HUNCH_DEVICE void write_gated(
    const float (&sums)[kSums], uint32_t aside, const ProductsOnDevice& a, int group, int row, int barrier, int t) {
  if (t < 2) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  named_barrier(barrier, 128);
  const int row8 = t % 32 / 4;
  const uint32_t to = aside + uint32_t(t / 32 * 2048 + row8 * 128 + t % 4 * 4);
#pragma unroll
  for (int i = 0; i < kSums / 2; i += 2) {
    const int eight = i / 4, low = i / 2 % 2;  // rows of the upper or lower eight
    const float* g = sums + i;
    const float* u = sums + kSums / 2 + i;
    // As it is stored and read elsewhere: a sum, and no bias.
    const auto sum = [&](float x) { return x * a.unit + 0.0f; };
    const float y0 = silu(sum(g[0])) * sum(u[0]), y1 = silu(sum(g[1])) * sum(u[1]);
    const uint32_t at = to + uint32_t(eight / 8 * 8192 + low * 1024 + (eight % 8 ^ row8) * 16);
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(bf16x2_of(y0, y1)) : "memory");
  }
  show_to_copy_engine();
  named_barrier(barrier, 128);
  const int part = group * 2 + t;
  if (t < 2 && part < a.num_tiles)
    copy_from_shared(a.gated + (int64_t(part) * a.x_blocks + row / 8) * 1024, aside + uint32_t(t * 8192), 8192);
}

template <Form kForm>
HUNCH_DEVICE void consume_stages(const ProductsOnDevice& a, uint32_t memory, uint32_t full, uint32_t empty) {
  const int group_warp = int(threadIdx.x) / 128, lane = int(threadIdx.x) % 32, t = int(threadIdx.x) % 128;
  const int splits = kForm == Form::Runs ? a.splits : 1;
  const uint32_t aside =
      memory + uint32_t(stages_of(kForm) * kStage + group_warp * (aside_of(kForm) / 2) + (kForm == Form::Runs ? t * 16 : 0));
  const auto release = [&](int stage) {
    __syncwarp();
    if (lane < 2) barrier_arrive_at(empty + uint32_t(stage * 8), uint32_t(lane));
  };
  float sums[kSums], total[kForm == Form::Runs ? kSums / 2 : 1];
  int stage = 0;
  uint32_t phase = 0;
  for (Units at(a); at.valid(); at.next()) {
    const int first_row = at.row + group_warp * 64, row = first_row + t / 32 * 16 + t % 32 / 4;
    for (int split = 0; split < splits; ++split) {
      const int begin = a.num_records * split / splits, end = a.num_records * (split + 1) / splits;
      int before = -1;
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[i] = 0;  // so that their registers are free while sums are written
      for (int record = begin; record < end; ++record) {
        barrier_wait(full + uint32_t(stage * 8), phase);
        const uint32_t here = memory + uint32_t(stage * kStage);
        const uint64_t x = tile_descriptor(here + uint32_t((kTiles + group_warp) * kTile)), w = tile_descriptor(here);
        wgmma_begin();
#pragma unroll
        for (int step = 0; step < 4; ++step)
          wgmma<256>(sums, x + uint64_t(step * 2), w + uint64_t(step * 2), step > 0 || record > begin);
        wgmma_commit();
        if (before >= 0) {
          wgmma_wait<1>();
          release(before);
        }
        before = stage;
        if (++stage == stages_of(kForm)) stage = 0, phase ^= 1;
      }
      wgmma_wait<0>();
      hold(sums);
      if (before >= 0) release(before);
      if constexpr (kForm == Form::Runs) {
#pragma unroll
        for (int i = 0; i < kSums / 2; ++i) total[i] = split == 0 ? sums[i] : total[i] + sums[i];
        add_aside(sums + kSums / 2, aside, split == 0, split + 1 == splits, a, at.group * kTiles + 2, row, t);
      }
    }
    if constexpr (kForm == Form::Gated) {
      write_gated(sums, aside, a, at.group, first_row, 1 + group_warp, t);
    } else {
      const float* written = kForm == Form::Runs ? total : sums;
#pragma unroll
      for (int i = 0; i < (kForm == Form::Runs ? kTiles / 2 : kTiles); ++i) {
        const Places places(a, at.group * kTiles + i, row, t);
#pragma unroll
        for (int eight = 0; eight < 8; ++eight) places.write(eight, written + (i * 8 + eight) * 4);
      }
    }
  }
  if (kForm == Form::Gated && t < 2) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

template <Form kForm>
__global__ void HUNCH_CLUSTER(2) __launch_bounds__(384, 1) chunk_kernel(const ProductsOnDevice* args) {
#if HUNCH_HOPPER
  extern __shared__ __align__(1024) std::byte shared_memory[];
  SharedHead& head = *reinterpret_cast<SharedHead*>(shared_memory);
  const uint32_t memory = shared_address(shared_memory) + kHeadBytes;
  const uint32_t full = shared_address(head.full), empty = shared_address(head.empty);
  let_next_start();
  for (int i = int(threadIdx.x); i < int(sizeof(ProductsOnDevice) / 4); i += int(blockDim.x))
    reinterpret_cast<uint32_t*>(&head.args)[i] = __ldcg(reinterpret_cast<const uint32_t*>(args) + i);
  if (threadIdx.x == 0) {
    for (int s = 0; s < stages_of(kForm); ++s) {
      barrier_init(full + uint32_t(s * 8), 1);
      barrier_init(empty + uint32_t(s * 8), 8 * 2);
    }
    barrier_init_done();
  }
  sync_cluster();
  wait_for_previous();
  // Of the 168 registers that a thread begins with, one side gives what the other takes: 144 x 128 are 72 x 256.
  if (threadIdx.x >= 256) {
    give_registers<24>();
    if (threadIdx.x < 288) fill_stages<kForm>(head.args, memory, full, empty);
  } else {
    take_registers<240>();
    consume_stages<kForm>(head.args, memory, full, empty);
  }
  sync_cluster();  // the other block still arrives at barriers here
#endif
}

}

namespace {

struct UnpackDevice {
  const std::byte* from;
  uint4* to;
};
// A block a record, in the order of both.
template <DType kType>
__global__ void __launch_bounds__(128) unpack_kernel(const UnpackDevice* args) {
  constexpr RecordShape kShape = record_shape(kType);
  constexpr int kUnits = kTile / 16;
  __shared__ uint4 record[kShape.bytes / 16], plain[kUnits];
  let_next_start();
  const int t = int(threadIdx.x);
  const int64_t at = int64_t(blockIdx.y) * gridDim.x + blockIdx.x;
  const auto* const from = reinterpret_cast<const uint4*>(args->from + at * kShape.bytes);
  for (int i = t; i < kShape.bytes / 16; i += 128) record[i] = __ldg(from + i);
  uint4* to = args->to + at * (kShape.inputs / 64) * kUnits + t;
  wait_for_previous();  // who may still read what was there
  for (int part = 0; part < kShape.inputs / 64; ++part, to += kUnits) {
    __syncthreads();
    uint32_t operand[4][4];
    decode_part<kType, 0, 4>(load_part<kType>(shared_address(record), part, t), operand);
#pragma unroll
    for (int i = 0; i < 16; ++i)
      *reinterpret_cast<uint32_t*>(reinterpret_cast<std::byte*>(plain) +
          swizzled(t / 32 * 16 + t % 32 / 4 + 8 * (i % 2), i / 4 * 16 + t % 4 * 2 + i / 2 % 2 * 8)) = operand[i / 4][i % 4];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kUnits; i += 128) to[i] = plain[t + i];
  }
}
auto unpack_kernel_of(DType type) {
  switch (type) {
    case DType::Q8_0: return unpack_kernel<DType::Q8_0>;
    case DType::Q4_0: return unpack_kernel<DType::Q4_0>;
    case DType::Q4_K: return unpack_kernel<DType::Q4_K>;
    case DType::Q5_K: return unpack_kernel<DType::Q5_K>;
    case DType::Q6_K: return unpack_kernel<DType::Q6_K>;
    case DType::MXFP4: return unpack_kernel<DType::MXFP4>;
    default: return unpack_kernel<DType::F8_E4M3>;
  }
}

}

size_t unpacked_bytes(const ProductsOnDevice& a, DType form) {
  return has_codes(form) ? size_t(a.num_tiles) * a.parts * kTile : 0;
}

void enqueue_unpack(Commands& commands, ProductsOnDevice& a, DType form, std::byte* to) {
  if (!has_codes(form)) return;
  for (ProductOnDevice& p : std::span(a.products, a.num_products)) {
    commands.launch(unpack_kernel_of(form), {.blocks = dim3(unsigned(a.num_records), unsigned(p.num_tiles)), .threads = 128},
        UnpackDevice{p.tiles, reinterpret_cast<uint4*>(to)});
    p.tiles = to, to += int64_t(p.num_tiles) * a.parts * kTile;
  }
  a.num_records = a.parts;
}

bool fits_chunk(const ProductsOnDevice& a, DType form) {
  const auto fits = [](const ProductOnDevice& p) {
    return p.out_dim % 2 == 0 && p.out_stride % 2 == 0 && reinterpret_cast<uintptr_t>(p.out) % 8 == 0;
  };
  // Of codes whole records make a run, as these do when they have become more.
  return a.records_per_input == 1 && a.num_records >= a.splits && (!has_codes(form) || a.num_records % a.splits == 0) &&
      std::all_of(a.products, a.products + a.num_products, fits);
}

bool wants_chunk(const ProductsOnDevice& a, double time) {
  const int units = (a.num_tiles + kTiles - 1) / kTiles * ((a.rows + kClusterRows - 1) / kClusterRows),
            at_once = device_facts().num_sms / 2;
  constexpr double kSpeed = 1.1;  // of that of many_rows_kernel, measured
  return (units + at_once - 1) / at_once * kTiles / kSpeed < time;
}

void enqueue_chunk(Commands& commands, ProductsOnDevice a) {
  const int at_once = device_facts().num_sms / 2, tiles = a.gated ? kTiles / 2 : kTiles;
  if (a.gated) a.num_tiles = a.products[0].num_tiles;
  a.row_tiles = (a.rows + kClusterRows - 1) / kClusterRows;
  a.row_band = std::min(a.row_tiles, 8);
  a.groups = (a.num_tiles + tiles - 1) / tiles;
  a.units = a.groups * a.row_tiles;
  const auto launch = [&](auto kernel, Form form) {
    commands.launch(kernel,
        {.blocks = dim3(unsigned(2 * std::min(a.units, at_once))), .threads = 384, .shared_bytes = size_t(shared_of(form))}, a);
  };
  if (a.gated) launch(chunk_kernel<Form::Gated>, Form::Gated);
  else if (a.splits > 1) launch(chunk_kernel<Form::Runs>, Form::Runs);
  else launch(chunk_kernel<Form::OneRun>, Form::OneRun);
  commands.launched_long();
}

}
