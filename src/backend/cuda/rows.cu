// Norms, gate and rotation of rows: bound by launches for few rows, by memory for many. Sums of squares run in fp32 over
// fixed lanes and one fixed tree, whatever the alignment.
#include "backend/cuda/rows.h"

#include "backend/cuda/gate.cuh"
#include "backend/cuda/packed_rows.cuh"
#include "backend/cuda/ptx.h"

namespace hunch {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kWarpRow = 1024;   // rows up to this many elements are one warp's
constexpr int kRowsOfBlock = 4;  // such rows per block
constexpr int kHeld = 4;         // pieces of four elements that a thread keeps between the two passes of a norm

// Elements [i, i + 4) of a row of n; zeros past its end. The same values whatever the alignment.
HUNCH_DEVICE float4 load4(const float* row, int i, int n, bool aligned) {
  if (aligned && i + 4 <= n) return *reinterpret_cast<const float4*>(row + i);
  float4 x{0, 0, 0, 0};
  if (i < n) x.x = row[i];
  if (i + 1 < n) x.y = row[i + 1];
  if (i + 2 < n) x.z = row[i + 2];
  if (i + 3 < n) x.w = row[i + 3];
  return x;
}
HUNCH_DEVICE void store4(float* row, int i, int n, bool aligned, const float4& x) {
  if (aligned && i + 4 <= n) {
    *reinterpret_cast<float4*>(row + i) = x;
    return;
  }
  if (i < n) row[i] = x.x;
  if (i + 1 < n) row[i + 1] = x.y;
  if (i + 2 < n) row[i + 2] = x.z;
  if (i + 3 < n) row[i + 3] = x.w;
}
bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }
bool is_aligned(const View<const float, 2>& rows) { return is_aligned(rows.data) && rows.stride[0] % 4 == 0; }

struct NormDevice {
  const float* x;
  const float* weight;
  float* out;
  int64_t rows, x_stride, out_stride;
  int n;
  float eps;
  int x_aligned, out_aligned, weight_aligned;
  PackedRows packed;
};

// kWarp: a warp per row, kRowsOfBlock rows per block. Otherwise a block per row.
template <bool kWarp>
__global__ void __launch_bounds__(kWarp ? kRowsOfBlock * 32 : 512) norm_kernel(const NormDevice* args) {
  __shared__ float sums[16];
  const NormDevice a = *args;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int threads = kWarp ? 32 : int(blockDim.x), t = kWarp ? lane : int(threadIdx.x);
  let_next_start();
  float4 weight[kHeld];  // no kernel writes weights
#pragma unroll
  for (int h = 0; h < kHeld; ++h) weight[h] = load4(a.weight, (t + h * threads) * 4, a.n, a.weight_aligned);
  wait_for_previous();
  const int64_t r = kWarp ? int64_t(blockIdx.x) * kRowsOfBlock + warp : int64_t(blockIdx.x);
  if (r >= a.rows) return;
  const float* x = a.x + r * a.x_stride;
  float* out = a.out + r * a.out_stride;

  float4 held[kHeld];
#pragma unroll
  for (int h = 0; h < kHeld; ++h) held[h] = load4(x, (t + h * threads) * 4, a.n, a.x_aligned);
  float sum = 0;
  const auto add = [&](const float4& v) {
    sum = fmaf(v.x, v.x, sum), sum = fmaf(v.y, v.y, sum), sum = fmaf(v.z, v.z, sum), sum = fmaf(v.w, v.w, sum);
  };
#pragma unroll
  for (int h = 0; h < kHeld; ++h) add(held[h]);
  for (int i = (t + kHeld * threads) * 4; i < a.n; i += threads * 4) add(load4(x, i, a.n, a.x_aligned));
#pragma unroll
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(kAll, sum, d);
  if (!kWarp) {
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < int(blockDim.x) / 32; ++w) sum += sums[w];
  }
  const float scale = 1 / sqrtf(sum / float(a.n) + a.eps);
  const auto write = [&](int i, const float4& v, const float4& w) {
    const float4 y{v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w};
    store4(out, i, a.n, a.out_aligned, y);
    if (!kWarp && a.packed.at) pack_four(a.packed, r, i, y);
  };
#pragma unroll
  for (int h = 0; h < kHeld; ++h)
    if ((t + h * threads) * 4 < a.n) write((t + h * threads) * 4, held[h], weight[h]);
  for (int i = (t + kHeld * threads) * 4; i < a.n; i += threads * 4)
    write(i, load4(x, i, a.n, a.x_aligned), load4(a.weight, i, a.n, a.weight_aligned));
}

struct GateDevice {
  const float* gate;
  const float* up;
  float* out;
  int64_t gate_stride, up_stride, out_stride;
  int n, rows;
  int aligned, sigmoid, accumulate;
  PackedRows packed;
  GateClamp clamp;
};
__global__ void __launch_bounds__(256) gate_kernel(const GateDevice* args) {
  const GateDevice a = *args;
  let_next_start();
  wait_for_previous();
  const int64_t r = blockIdx.x;
  const int i = int(blockIdx.y * blockDim.x + threadIdx.x) * 4;
  if (i >= a.n || r >= a.rows) return;
  const float4 g = load4(a.gate + r * a.gate_stride, i, a.n, a.aligned), u = load4(a.up + r * a.up_stride, i, a.n, a.aligned);
  const auto through = [&](float x) { return a.sigmoid ? 1 / (1 + expf(-x)) : silu(x); };
  float* const out = a.out + r * a.out_stride;
  const float4 sum = a.accumulate ? load4(out, i, a.n, a.aligned) : float4{};
  float4 y{sum.x + through(g.x) * u.x, sum.y + through(g.y) * u.y, sum.z + through(g.z) * u.z, sum.w + through(g.w) * u.w};
  if (a.clamp.limit > 0)
    y = {clamped_gate(g.x, u.x, a.clamp), clamped_gate(g.y, u.y, a.clamp), clamped_gate(g.z, u.z, a.clamp),
        clamped_gate(g.w, u.w, a.clamp)};
  store4(out, i, a.n, a.aligned, y);
  if (a.packed.at) pack_four(a.packed, r, i, y);
}

struct AnglesDevice {
  const int32_t* positions;
  const float* inv_freq;
  float* cos_sin;
  int64_t freq_stride, row_stride, pair_stride, part_stride;
  int rows, half;
  float magnitude;
};
__global__ void __launch_bounds__(128) rope_angles_kernel(const AnglesDevice* args) {
  const AnglesDevice a = *args;
  let_next_start();
  wait_for_previous();
  const int at = int(blockIdx.x * blockDim.x + threadIdx.x), r = at / a.half, i = at % a.half;
  if (r >= a.rows) return;
  const float angle = float(a.positions[r]) * a.inv_freq[i * a.freq_stride];  // rounded to fp32, as the definition has it
  float* out = a.cos_sin + r * a.row_stride + i * a.pair_stride;
  out[0] = cosf(angle) * a.magnitude;
  out[a.part_stride] = sinf(angle) * a.magnitude;
}

// Blocks of `threads` for n pieces of work; rows along y.
dim3 blocks_for(int64_t n, int64_t threads, int64_t rows) {
  HUNCH_CHECK(rows <= 65535);
  return dim3(unsigned((n + threads - 1) / threads), unsigned(rows));
}

}

void enqueue_norm(Commands& commands, const NormArgs& args) {
  const int64_t rows = args.x.extent[0], n = args.x.extent[1];
  if (rows == 0) return;
  HUNCH_CHECK(args.x.stride[1] == 1 && args.out.stride[1] == 1 && n > 0 && n < (int64_t(1) << 29));
  const NormDevice device{args.x.data, args.weight, args.out.data, rows, args.x.stride[0], args.out.stride[0], int(n),
      float(args.eps), is_aligned(args.x), is_aligned(args.out), is_aligned(args.weight),
      n <= kWarpRow ? PackedRows{} : wanted_packed(commands, rows, n)};
  if (n <= kWarpRow) {
    commands.launch(norm_kernel<true>,
        {.blocks = dim3(unsigned((grid_rows(rows) + kRowsOfBlock - 1) / kRowsOfBlock)), .threads = kRowsOfBlock * 32}, device);
  } else {
    const unsigned threads = n <= 2048 ? 128 : n <= 4096 ? 256 : 512;
    commands.launch(norm_kernel<false>, {.blocks = dim3(unsigned(grid_rows(rows))), .threads = threads}, device);
    if (device.packed.at) commands.set_packed(args.out);
  }
}

void enqueue_gate(Commands& commands, const GateArgs& args) {
  const int64_t rows = args.gate.extent[0], n = args.gate.extent[1];
  if (rows == 0) return;
  HUNCH_CHECK(args.gate.stride[1] == 1 && args.up.stride[1] == 1 && args.out.stride[1] == 1);
  const bool aligned = is_aligned(args.gate) && is_aligned(args.up) && is_aligned(args.out);
  HUNCH_CHECK(args.clamp.limit <= 0 || (!args.sigmoid && !args.accumulate));
  const PackedRows packed = wanted_packed(commands, rows, n);
  commands.launch(gate_kernel, {.blocks = dim3(unsigned(grid_rows(rows)), unsigned((n + 1023) / 1024)), .threads = 256},
      GateDevice{args.gate.data, args.up.data, args.out.data, args.gate.stride[0], args.up.stride[0], args.out.stride[0], int(n),
          int(rows), aligned, args.sigmoid, args.accumulate, packed, args.clamp});
  if (packed.at) commands.set_packed(args.out);
}

void enqueue_rope_angles(Commands& commands, const RopeAnglesArgs& args) {
  const int64_t rows = args.positions.extent[0], half = args.inv_freq.extent[0];
  if (rows == 0 || half == 0) return;
  commands.launch(rope_angles_kernel, {.blocks = blocks_for(grid_rows(rows) * half, 128, 1), .threads = 128},
      AnglesDevice{commands.data(args.positions), args.inv_freq.data, args.cos_sin.data, args.inv_freq.stride[0],
          args.cos_sin.stride[0], args.cos_sin.stride[1], args.cos_sin.stride[2], int(rows), int(half), args.magnitude});
}

}
