// See nsa.h. Here: paths of trees, what the kernels are told, which of them run.
#include "backend/cuda/nsa.h"

#include <algorithm>
#include <bit>

#include "backend/cuda/nsa_kernel.cuh"
#include "base/check.h"

namespace hunch {
namespace {

// Branches that stand in memory apart, mixed: for comparison alone.
__global__ void nsa_mix_kernel(const NsaLaunch* args) {
  const NsaDevice& a = args->runs[blockIdx.y];
  wait_for_previous();
  let_next_start();
  const int heads = a.kv_heads * a.group, dim = a.raw.head_dim;
  for (int i = int(blockIdx.x * blockDim.x + threadIdx.x); i < a.rows * heads * dim / 4; i += int(gridDim.x * blockDim.x)) {
    const int row = i / (heads * dim / 4), head = i / (dim / 4) % heads, d = i % (dim / 4) * 4;
    const float* gates = a.gates + row * a.gates_row + 3 * head;
    const int64_t at = (int64_t(row) * heads + head) * dim + d;
    float4 x = nsa_weighed(gates[0], *reinterpret_cast<const float4*>(a.compressed_out + at), make_float4(0, 0, 0, 0));
    x = nsa_weighed(gates[1], *reinterpret_cast<const float4*>(a.selected_out + at), x);
    x = nsa_weighed(gates[2], *reinterpret_cast<const float4*>(a.window_out + at), x);
    *reinterpret_cast<float4*>(a.out + row * a.out_row + head * a.out_head + d) = x;
  }
}

constexpr int most_tiles(int head_dim) { return head_dim == 64 ? 4 : 2; }

// One block makes compressed entries of one KV head, a thread two elements of K and V a head_dim / 2 apart, in the sums of
// ops/nsa.cpp.
__global__ void nsa_compress_kernel(const NsaCompressLaunch* args) {
  extern __shared__ float nsa_entries[];  // linear: [K, V][cmp_len][head_dim], as before any rotation
  const NsaCompressLaunch a = *args;
  wait_for_previous();
  let_next_start();
  const int heads = a.runs[0].kv_heads, dim = a.runs[0].raw.head_dim, half = dim / 2, i = int(threadIdx.x);
  for (int at = int(blockIdx.x); at < a.num_jobs * heads; at += int(gridDim.x)) {
    const NsaCompressDevice job = a.jobs[at / heads];
    const NsaDevice& run = a.runs[job.run];
    const int head = at % heads, first = job.index * run.cmp_stride;
    const float frequency = a.inv_freq[i], angle = float(first) * frequency, cosine = cosf(angle), sine = sinf(angle);
    double key[2] = {0, 0}, value[2] = {0, 0};
    if (a.linear) __syncthreads();  // the entries before have been read
    for (int m = 0; m < run.cmp_len; ++m) {
      const int entry = job.listed < 0 ? first + m : a.places[job.listed + m];
      const auto* row = reinterpret_cast<const __nv_bfloat16*>(
                            run.raw.keys + head * run.raw.head_bytes + run.raw_pages[entry / kPageLen] * run.raw.chunk_bytes) +
          int64_t(entry % kPageLen) * 2 * dim;
      float k[2] = {__bfloat162float(row[i]), __bfloat162float(row[i + half])};
      const float v[2] = {__bfloat162float(row[dim + i]), __bfloat162float(row[dim + i + half])};
      const auto turn_back = [&](float c, float s) {
        const float x = k[0], y = k[1];
        k[0] = x * c + y * s, k[1] = y * c - x * s;
      };
      if (a.rotates) turn_back(float(cos(double(m) * double(frequency))), float(sin(double(m) * double(frequency))));
      if (a.linear) {
        if (a.rotates) turn_back(cosine, sine), k[0] /= a.magnitude, k[1] /= a.magnitude;
        for (int h = 0; h < 2; ++h)
          nsa_entries[m * dim + i + h * half] = k[h], nsa_entries[(run.cmp_len + m) * dim + i + h * half] = v[h];
        continue;
      }
      const int weight = head * run.cmp_len + m;
      for (int h = 0; h < 2; ++h) key[h] += double(a.key[weight] * k[h]), value[h] += double(a.value[weight] * v[h]);
    }
    if (a.linear) {
      __syncthreads();
      for (int c = 0; c < run.cmp_len * dim; ++c)
        for (int h = 0; h < 2; ++h) {
          const int64_t weight = (int64_t(head) * run.cmp_len * dim + c) * dim + i + h * half;
          key[h] += double(nsa_entries[c] * a.key[weight]),
              value[h] += double(nsa_entries[run.cmp_len * dim + c] * a.value[weight]);
        }
    }
    const bool turned = a.rotates && !a.linear;  // the sum of a weighted row has its rotation already
    float k[2];
    for (int h = 0; h < 2; ++h) {
      k[h] = turned ? 0.0f : float(key[h]);
      if (a.key_offset) k[h] += a.key_offset[head * dim + i + h * half];
    }
    if (a.rotates) {
      const float x = k[0], y = k[1];
      k[0] = (x * cosine - y * sine) * a.magnitude + (turned ? float(key[0]) : 0.0f);
      k[1] = (y * cosine + x * sine) * a.magnitude + (turned ? float(key[1]) : 0.0f);
    }
    std::byte* to = job.listed >= 0 ? const_cast<std::byte*>(run.owned) + (int64_t(head) * run.num_owned + job.to) * dim * 4
                                    : run.compressed.keys + head * run.compressed.head_bytes +
            run.compressed_pages[job.to / kPageLen] * run.compressed.chunk_bytes + int64_t(job.to % kPageLen) * dim * 4;
    auto* row = reinterpret_cast<__nv_bfloat16*>(to);
    for (int h = 0; h < 2; ++h)
      row[i + h * half] = __float2bfloat16_rn(k[h]), row[dim + i + h * half] = __float2bfloat16_rn(float(value[h]));
  }
}

struct Kind {
  int head_dim, block, tiles;
};

template <int D, int kBlock, int kTiles>
void launch(Commands& commands, bool route, dim3 blocks, int owners, const NsaLaunch& args) {
  const Grid grid{.blocks = blocks,
      .threads = kNsaBlockChains * kTiles * 32,
      .shared_bytes = size_t(NsaShared<D, kTiles * 16>::kOwners) + size_t(owners) * sizeof(uint32_t)};
  if (route) commands.launch(nsa_kernel<D, kBlock, kTiles, true>, grid, args);
  else commands.launch(nsa_kernel<D, kBlock, kTiles, false>, grid, args);
}
template <int D, int kBlock>
void launch_tiles(Commands& commands, const Kind& kind, bool route, dim3 blocks, int owners, const NsaLaunch& args) {
  if (kind.tiles == 1) launch<D, kBlock, 1>(commands, route, blocks, owners, args);
  else if (kind.tiles == 2) launch<D, kBlock, 2>(commands, route, blocks, owners, args);
  else if constexpr (most_tiles(D) == 4) launch<D, kBlock, 4>(commands, route, blocks, owners, args);
}
template <int D>
void launch_block(Commands& commands, const Kind& kind, bool route, dim3 blocks, int owners, const NsaLaunch& args) {
  if constexpr (D == 64) {  // of models that exist
    if (kind.block == 32) return launch_tiles<D, 32>(commands, kind, route, blocks, owners, args);
    if (kind.block == 16) return launch_tiles<D, 16>(commands, kind, route, blocks, owners, args);
  }
  launch_tiles<D, 64>(commands, kind, route, blocks, owners, args);
}
void launch_kind(Commands& commands, const Kind& kind, bool route, dim3 blocks, int owners, const NsaLaunch& args) {
  if (kind.head_dim == 64) launch_block<64>(commands, kind, route, blocks, owners, args);
  else launch_block<128>(commands, kind, route, blocks, owners, args);
}

}  // namespace

std::string nsa_lacks(const NsaShape& shape, int heads, int kv_heads, int head_dim) {
  if (!is_hopper()) return "natively trained sparse attention on devices before Hopper";
  if (head_dim != 64 && head_dim != 128) return "natively trained sparse attention over heads other than of 64 and 128";
  if (heads / kv_heads > 16) return "natively trained sparse attention of more than 16 query heads a KV head";
  if (shape.sel_block != 64 && !(head_dim == 64 && (shape.sel_block == 32 || shape.sel_block == 16)))
    return "selection blocks other than of 64 (heads of 64: 16 and 32, too)";
  if (shape.sel_count > kNsaMostPicks) return "more than 32 selected blocks";
  return {};
}

int most_grouped_rows(int head_dim, int group) {
  return std::min(kNsaMostGrouped, most_tiles(head_dim) * 16 / int(std::bit_ceil(unsigned(group))));
}

void CudaNsa::add_run(Commands& commands, const NsaShape& shape, const NsaRows& run, NsaDevice& device) {
  const auto upload = [&](const std::vector<int32_t>& values) { return commands.data(std::span<const int32_t>(values)); };
  device.raw = run.raw, device.compressed = run.compressed;
  device.raw_pages = commands.data(run.raw_pages), device.compressed_pages = commands.data(run.compressed_pages);
  device.q = run.q.data, device.q_row = run.q.stride[0], device.q_head = run.q.stride[1];
  device.gates = run.gates.data, device.gates_row = run.gates.stride[0];
  device.out = run.out.data, device.out_row = run.out.stride[0], device.out_head = run.out.stride[1];
  device.rows = int32_t(run.positions.size()), device.kv_heads = run.raw.kv_heads;
  device.group = int32_t(run.q.extent[1]) / device.kv_heads;
  device.group_shift = std::countr_zero(std::bit_ceil(unsigned(device.group)));
  device.positions = commands.data(run.positions);
  const bool tree = !run.parents.empty();
  const int newest = *std::max_element(run.positions.begin(), run.positions.end());
  device.entries = tree ? run.positions[0] : newest + 1, device.compressed_entries = int32_t(shape.rows_of(device.entries));
  device.owned = run.owned_rows, device.num_owned = run.num_owned;
  device.cmp_len = shape.cmp_len, device.cmp_stride = shape.cmp_stride, device.sel_count = shape.sel_count;
  device.init_blocks = shape.init_blocks, device.local_blocks = shape.local_blocks, device.window = shape.window;
  device.index = run.chosen;
  const int rows = device.rows;
  path_of_row_.assign(size_t(rows), tree ? -1 : 0), path_rows_.clear(), path_compressed_.clear(), leaf_.clear();
  if (tree) find_paths(run);
  device.num_paths = int32_t(leaf_.size()), device.path_stride = leaf_.empty() ? 0 : int32_t(path_rows_.size() / leaf_.size());
  device.path_of_row = upload(path_of_row_), device.path_rows = upload(path_rows_);
  device.path_compressed = upload(path_compressed_);
}

// A path from the root to every row that is nobody's parent; of the rows on the way each stands on one of them.
void CudaNsa::find_paths(const NsaRows& run) {
  const auto parent = [&](int row) { return run.parents[size_t(row)]; };
  int deepest = 0;
  for (int row = int(run.positions.size()) - 1; row >= 0; --row) {
    deepest = std::max(deepest, run.positions[size_t(row)] - run.positions[0]);
    if (path_of_row_[size_t(row)] >= 0) continue;
    for (int at = row; at >= 0 && path_of_row_[size_t(at)] < 0; at = parent(at)) path_of_row_[size_t(at)] = int32_t(leaf_.size());
    leaf_.push_back(row);
  }
  path_rows_.assign(leaf_.size() * size_t(deepest + 1), -1);
  path_compressed_.assign(leaf_.size() * size_t(kNsaMostOwned), -1);
  for (size_t path = 0; path < leaf_.size(); ++path) {
    int owned = 0;
    for (int at = leaf_[path]; at >= 0; at = parent(at)) {
      path_rows_[path * size_t(deepest + 1) + size_t(run.positions[size_t(at)] - run.positions[0])] = at;
      owned += run.owned[size_t(at)] >= 0;
    }
    HUNCH_CHECK(owned <= kNsaMostOwned);
    for (int at = leaf_[path]; owned > 0; at = parent(at))
      if (run.owned[size_t(at)] >= 0) path_compressed_[path * size_t(kNsaMostOwned) + size_t(--owned)] = run.owned[size_t(at)];
  }
}

// Compressed entries that rows of a tree complete, to the scratch that `owned` counts in.
void CudaNsa::find_owned(const NsaShape& shape, const NsaRun& run, int index) {
  const size_t first = owned_.size();
  int32_t count = 0;
  for (int64_t row = 0; row < run.num_rows; ++row) {
    const int64_t position = run.last(row), number = shape.rows_of(position + 1) - 1;
    owned_.push_back(-1);
    if (number < 0 || shape.rows_of(position) == number + 1) continue;
    owned_[first + size_t(row)] = count;
    jobs_.push_back({.run = index, .index = int32_t(number), .listed = int32_t(places_.size()), .to = count++});
    const size_t list = places_.size();
    places_.resize(list + size_t(shape.cmp_len));
    int64_t at = row, place = position;
    for (int m = shape.cmp_len; m-- > 0; --place) {
      places_[list + size_t(m)] = int32_t(place < run.tree.first_entry ? place : run.tree.first_entry + at);
      if (place >= run.tree.first_entry) at = run.tree.parents[size_t(at)];
    }
  }
}

void CudaNsa::compress_kept(Commands& commands, const NsaAttentionArgs& args) {
  int64_t most_jobs = 0;
  // A layer may attend in several calls: what this one's runs do not read is left to those that do.
  std::erase_if(kept_, [&](const CompressKvArgs& kept) {
    const auto run =
        std::find_if(args.runs.begin(), args.runs.end(), [&](const NsaRun& r) { return r.kv.pages.data == kept.kv.pages.data; });
    if (run == args.runs.end()) return false;
    for (int64_t i = kept.first; i < kept.last; ++i)
      jobs_.push_back({.run = int32_t(run - args.runs.begin()), .index = int32_t(i), .to = int32_t(i)});
    return true;
  });
  // As many blocks whatever there is to do this time: every stride of new rows may complete one.
  for (const NsaRun& run : args.runs) most_jobs += run.num_rows / args.nsa.shape->cmp_stride + 1;
  const NsaShape& shape = *args.nsa.shape;
  NsaCompressLaunch launch;
  launch.runs = commands.data(std::span<const NsaDevice>(devices_)),
  launch.jobs = commands.data(std::span<const NsaCompressDevice>(jobs_));
  launch.places = commands.data(std::span<const int32_t>(places_)), launch.num_jobs = int32_t(jobs_.size());
  launch.linear = shape.kind == NsaShape::Kind::Linear, launch.rotates = !shape.rope_before;
  launch.key = args.nsa.key, launch.value = args.nsa.value, launch.key_offset = args.nsa.key_offset;
  launch.inv_freq = args.nsa.inv_freq, launch.magnitude = args.nsa.magnitude;
  const int dim = devices_[0].raw.head_dim;
  commands.launch(nsa_compress_kernel,
      {.blocks = dim3(unsigned(most_jobs * devices_[0].kv_heads)),
          .threads = unsigned(dim / 2),
          .shared_bytes = launch.linear ? size_t(shape.cmp_len * dim) * 2 * sizeof(float) : 0},
      launch);
}

void CudaNsa::enqueue(Commands& commands, const NsaAttentionArgs& args) {
  const NsaShape& shape = *args.nsa.shape;
  rows_.clear(), jobs_.clear(), places_.clear(), owned_.clear();
  int64_t trees = 0;
  for (const NsaRun& run : args.runs) {
    if (run.tree.parents.empty()) continue;
    HUNCH_CHECK(run.tree.first == 0);
    trees += run.num_rows;
  }
  owned_.reserve(size_t(trees));  // spans of it stay
  for (size_t r = 0; r < args.runs.size(); ++r) {
    const NsaRun& run = args.runs[r];
    NsaRows rows;
    rows.raw = kv_plane(run.kv, args.layer), rows.compressed = kv_plane(run.rows, args.layer);
    rows.raw_pages = run.kv.pages, rows.compressed_pages = run.rows.pages;
    rows.q = args.q.slice(run.first_row, run.num_rows), rows.gates = args.gates.slice(run.first_row, run.num_rows);
    if (args.out.data) rows.out = args.out.slice(run.first_row, run.num_rows);
    HUNCH_CHECK(run.last.stride[0] == 1 || run.num_rows == 1);
    rows.positions = std::span(run.last.data, size_t(run.num_rows));
    if (args.chosen.data) rows.chosen = &args.chosen(run.first_row, 0, 0);
    rows.given = args.given;
    if (!run.tree.parents.empty()) {
      const size_t first = owned_.size();
      find_owned(shape, run, int(r));
      rows.parents = run.tree.parents, rows.owned = std::span(owned_).subspan(first);
      rows.num_owned = int(run.num_rows);
    }
    rows_.push_back(rows);
  }
  attend(commands, shape, args.scale, rows_, {}, &args);
}

void CudaNsa::attend(Commands& commands, const NsaShape& shape, float scale, std::span<const NsaRows> runs,
    const NsaGrouping& grouping, const NsaAttentionArgs* op) {
  commands.begin_op();
  devices_.assign(runs.size(), NsaDevice{});
  int most_rows = 0, most_blocks = 0;
  int64_t rows = 0, pooled_stride = 0, owned = 0;
  for (size_t r = 0; r < runs.size(); ++r) {
    add_run(commands, shape, runs[r], devices_[r]);
    const int newest = *std::max_element(runs[r].positions.begin(), runs[r].positions.end());
    most_rows = std::max(most_rows, devices_[r].rows), most_blocks = std::max(most_blocks, newest / shape.sel_block + 1);
    pooled_stride = std::max(pooled_stride, int64_t(newest / shape.cmp_stride / kNsaTile + 1) * kNsaTile);
    rows += devices_[r].rows, owned += runs[r].num_owned;
  }
  const NsaDevice& first = devices_[0];
  const int dim = first.raw.head_dim, heads = first.kv_heads * first.group;
  HUNCH_CHECK(nsa_lacks(shape, heads, first.kv_heads, dim).empty() && most_blocks <= kNsaMostBlocks);
  const int most = most_grouped_rows(dim, first.group);
  const int grouped = std::min({grouping.rows > 0 ? grouping.rows : most, most, most_rows});
  Kind kind{dim, shape.sel_block, 1};
  while (kind.tiles * 16 < grouped << first.group_shift) kind.tiles *= 2;
  order_.clear();
  for (int row = 0; row < most_rows; ++row) order_.push_back(row);
  if (!grouping.order.empty()) order_.assign(grouping.order.begin(), grouping.order.end());
  const int32_t* order = commands.data(std::span<const int32_t>(order_));
  // Floats: branches' outcomes, pooled weights, entries that trees own (K and V in bf16), choices.
  const int64_t part = rows * heads * dim, pooled = rows * first.kv_heads * pooled_stride;
  const int64_t owned_part = owned * first.kv_heads * dim, chosen = rows * first.kv_heads * shape.sel_count;
  auto* memory = static_cast<float*>(commands.workspace(size_t(3 * part + pooled + owned_part + chosen) * sizeof(float)));
  float* owned_rows = memory + 3 * part + pooled;
  auto* choices = reinterpret_cast<int32_t*>(owned_rows + owned_part);
  int64_t before = 0;
  for (size_t r = 0; r < runs.size(); ++r) {
    NsaDevice& device = devices_[r];
    device.grouped = grouped, device.order = order, device.scale_log2 = scale * kNsaLog2E, device.shared = grouping.shared;
    device.compressed_out = memory + before * heads * dim, device.selected_out = device.compressed_out + part;
    device.window_out = device.selected_out + part;
    device.pooled = memory + 3 * part + before * first.kv_heads * pooled_stride, device.pooled_stride = pooled_stride;
    if (!device.index) device.index = choices + before * first.kv_heads * shape.sel_count;
    if (!device.owned) device.owned = reinterpret_cast<const std::byte*>(owned_rows);
    owned_rows += int64_t(runs[r].num_owned) * first.kv_heads * dim;
    before += device.rows;
  }
  if (op) compress_kept(commands, *op);
  const dim3 blocks(unsigned(kNsaBlocks * first.kv_heads * ((most_rows + grouped - 1) / grouped)), unsigned(runs.size()));
  // Words of owners: as many as blocks make, in steps, so that graphs fit again.
  const int slots = most_blocks / kNsaBlocks + kNsaBlockChains + 1, owners = std::max(512, int(std::bit_ceil(unsigned(slots))));
  const auto run = [&](bool route, auto set) {
    for (NsaDevice& device : devices_) set(device);
    launch_kind(commands, kind, route, blocks, owners, NsaLaunch{commands.data(std::span<const NsaDevice>(devices_))});
  };
  const bool given = runs[0].given;
  if (given && !grouping.apart) {  // nothing to choose: one launch
    run(false, [](NsaDevice& d) { d.branches = kNsaCompressed | kNsaSelected | kNsaWindow, d.from_memory = 0; });
    return;
  }
  run(true, [&](NsaDevice& d) { d.choose = !given; });
  if (!runs[0].out.data) return;  // they wanted to choose only
  if (!grouping.apart) {
    run(false, [](NsaDevice& d) { d.branches = kNsaSelected | kNsaWindow, d.from_memory = 1; });
    return;
  }
  run(false, [](NsaDevice& d) { d.branches = kNsaSelected, d.apart = 1; });
  run(false, [](NsaDevice& d) { d.branches = kNsaWindow, d.apart = 1; });
  commands.launch(nsa_mix_kernel, {.blocks = dim3(64, unsigned(runs.size())), .threads = 256},
      NsaLaunch{commands.data(std::span<const NsaDevice>(devices_))});
}

}  // namespace hunch
