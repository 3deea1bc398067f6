#include "backend/cuda/small.h"

#include "backend/cuda/ptx.h"

namespace hunch {
namespace {

constexpr unsigned kThreads = 256;
// Blocks for work whose length changes from round to round: enough to fill the device, each strides over what there is.
constexpr unsigned kStriding = 264;

__device__ int64_t first_index() { return int64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ int64_t stride() { return int64_t(gridDim.x) * blockDim.x; }

struct CopyRows {
  const float* from;
  float* to;
  int64_t rows, columns, from_stride, to_stride;  // from_stride 0: one row for all
  const int32_t* index;                           // null: none
};
struct CopiesOfRows {
  const CopyRows* calls;  // one per row of blocks
  int64_t count;
};
__global__ void copy_rows_kernel(const CopiesOfRows* args) {
  wait_for_previous();
  let_next_start();
  if (blockIdx.y >= args->count) return;
  const CopyRows a = args->calls[blockIdx.y];
  for (int64_t i = first_index(); i < a.rows * a.columns; i += stride()) {
    const int64_t row = i / a.columns, column = i % a.columns;
    a.to[row * a.to_stride + column] = a.from[(a.index ? a.index[row] : row) * a.from_stride + column];
  }
}

struct CopyTokens {
  const int32_t* from;
  int32_t* to;
  int64_t count, from_stride, to_stride;
  const int32_t* index;  // null: none
};
struct CopiesOfTokens {
  const CopyTokens* calls;  // one a block
  int count;
};
__global__ void copy_tokens_kernel(const CopiesOfTokens* args) {
  wait_for_previous();
  let_next_start();
  if (int(blockIdx.x) >= args->count) return;
  const CopyTokens a = args->calls[blockIdx.x];
  for (int64_t i = threadIdx.x; i < a.count; i += blockDim.x)
    a.to[i * a.to_stride] = a.from[(a.index ? a.index[i] : i) * a.from_stride];
}

struct Scatter {
  const float* from;
  const int32_t* map;
  float* to;
  int64_t n, from_stride, to_stride;
};
__global__ void scatter_columns_kernel(const Scatter* args) {
  wait_for_previous();
  let_next_start();
  const Scatter a = *args;
  for (int64_t i = first_index(); i < a.n; i += stride())
    if (a.map[i] >= 0) a.to[blockIdx.y * a.to_stride + a.map[i]] = a.from[blockIdx.y * a.from_stride + i];
}

struct Reduce {
  const float* from;
  float* out;
  int64_t n, from_stride, out_stride;
  int pool, block;
};
__global__ void reduce_kernel(const Reduce* args) {
  wait_for_previous();
  let_next_start();
  const Reduce a = *args;
  const float* from = a.from + blockIdx.y * a.from_stride;
  float* out = a.out + blockIdx.y * a.out_stride;
  if (a.block > 1) {
    for (int64_t b = first_index(); b < a.n / a.block; b += stride()) {
      float best = from[b * a.block];
      for (int i = 1; i < a.block; ++i) best = best < from[b * a.block + i] ? from[b * a.block + i] : best;
      out[b] = best;
    }
    return;
  }
  const int64_t reach = a.pool / 2;
  for (int64_t j = first_index(); j < a.n; j += stride()) {
    const int64_t first = j > reach ? j - reach : 0, last = j + reach < a.n - 1 ? j + reach : a.n - 1;
    float sum = 0;
    for (int64_t i = first; i <= last; ++i) sum += from[i];
    out[j] = sum / float(a.pool);
  }
}

struct Split {
  const float* q;
  float* out;
  int64_t rows, heads, dim, groups;  // groups 0: rows and heads as they are
  int64_t row_stride, head_stride;
};
__global__ void split_kernel(const Split* args) {
  wait_for_previous();
  let_next_start();
  const Split a = *args;
  for (int64_t i = first_index(); i < a.rows * a.heads * a.dim; i += stride()) {
    const int64_t d = i % a.dim, head = i / a.dim % a.heads, row = i / (a.dim * a.heads);
    const float x = a.q[row * a.row_stride + head * a.head_stride + d];
    int64_t at = row * a.heads + head;
    if (a.groups > 0) {
      const int64_t group = a.heads / a.groups;
      at = (row * group + head % group) * a.groups + head / group;
    }
    a.out[at * 2 * a.dim + d] = fmaxf(x, 0.0f);
    a.out[at * 2 * a.dim + a.dim + d] = fminf(x, 0.0f);
  }
}

struct Ends {
  int32_t* to;
  int64_t n, count, stride;
  int sinks;
};
__global__ void ends_kernel(const Ends* args) {
  wait_for_previous();
  let_next_start();
  const Ends a = *args;
  for (int64_t i = first_index(); i < a.count; i += stride())
    a.to[blockIdx.y * a.stride + i] = int32_t(i < a.sinks ? i : a.n - a.count + i);
}

Grid grid_of(int64_t blocks, int64_t rows = 1) { return {.blocks = dim3(unsigned(blocks), unsigned(rows)), .threads = kThreads}; }

}

cudaError_t look_for_code(int* compiled_for) {
  cudaFuncAttributes found;
  const cudaError_t code = cudaFuncGetAttributes(&found, copy_tokens_kernel);
  (void)cudaGetLastError();  // not an error of the next call
  if (compiled_for && code == cudaSuccess) *compiled_for = found.ptxVersion;
  return code;
}

void enqueue_copy_rows(Commands& commands, std::span<const CopyRowsArgs> calls) {
  std::vector<CopyRows> copies;
  int64_t most = 0;
  for (const CopyRowsArgs& args : calls) {
    const int64_t rows = args.to.extent[0], columns = args.to.extent[1];
    const bool all_one = args.from.extent[0] == 1 && !args.index.data;
    HUNCH_CHECK(args.from.extent[1] == columns && (args.index.data || args.from.extent[0] == rows || all_one));
    HUNCH_CHECK(!args.index.data || (args.index.extent[0] == rows && args.index.stride[0] == 1));
    if (rows * columns == 0) continue;
    copies.push_back(
        {args.from.data, args.to.data, rows, columns, all_one ? 0 : args.from.stride[0], args.to.stride[0], args.index.data});
    most = std::max(most, rows * columns);
  }
  if (copies.empty()) return;
  const int64_t blocks = std::min<int64_t>(grid_rows((most + kThreads - 1) / kThreads), kStriding), count = std::ssize(copies);
  commands.launch(
      copy_rows_kernel, grid_of(blocks, grid_rows(count)), CopiesOfRows{commands.data(std::span<const CopyRows>(copies)), count});
}

void enqueue_copy_tokens(Commands& commands, std::span<const CopyTokensArgs> calls) {
  std::vector<CopyTokens> copies;
  for (const CopyTokensArgs& args : calls) {
    const bool indexed = !args.index.empty();
    HUNCH_CHECK(args.to.extent[0] == (indexed ? std::ssize(args.index) : args.from.extent[0]));
    copies.push_back({args.from.data, args.to.data, args.to.extent[0], args.from.stride[0], args.to.stride[0],
        indexed ? commands.data(args.index) : nullptr});
  }
  commands.launch(copy_tokens_kernel, {.blocks = dim3(unsigned(grid_rows(std::ssize(copies)))), .threads = 64},
      CopiesOfTokens{commands.data(std::span<const CopyTokens>(copies)), int(copies.size())});
}

void enqueue_scatter_columns(Commands& commands, const ScatterColumnsArgs& args) {
  const int64_t n = args.map.extent[0], rows = args.to.extent[0];
  HUNCH_CHECK(args.from.extent[1] == n && args.from.extent[0] == rows && args.map.stride[0] == 1);
  HUNCH_CHECK(args.from.stride[1] == 1 && args.to.stride[1] == 1);
  if (rows == 0 || n == 0) return;
  commands.launch(scatter_columns_kernel, grid_of(kStriding / 4, rows),
      Scatter{args.from.data, args.map.data, args.to.data, n, args.from.stride[0], args.to.stride[0]});
}

void enqueue_reduce_scores(Commands& commands, const ReduceScoresArgs& args) {
  HUNCH_CHECK(args.pool % 2 == 1 && (args.pool == 1 || args.block == 1));
  commands.launch(reduce_kernel, grid_of(kStriding, args.scores.extent[0]),
      Reduce{args.scores.data, args.out.data, args.n, args.scores.stride[0], args.out.stride[0], args.pool, args.block});
}

void enqueue_split_signs(Commands& commands, const SplitSignsArgs& args) {
  const int64_t rows = args.q.extent[0], heads = args.q.extent[1], dim = args.q.extent[2];
  commands.launch(split_kernel, grid_of((rows * heads * dim + kThreads - 1) / kThreads),
      Split{args.q.data, args.out.data, rows, heads, dim, args.by_group ? args.out.extent[1] : 0, args.q.stride[0],
          args.q.stride[1]});
}

void enqueue_ends(Commands& commands, const TopKArgs& args) {
  HUNCH_CHECK(args.count == args.sinks + args.recent && args.count <= args.n);
  commands.launch(ends_kernel, grid_of(32, args.index.extent[0]),
      Ends{args.index.data, args.n, args.count, args.index.stride[0], args.sinks});
  commands.wrote_cache();
}

}
