// See nsa.h. Here: paths of trees, what the kernels are told, which of them run.
#include "backend/cuda/nsa.h"

#include <bit>

#include "backend/cuda/nsa_chunk.cuh"
#include "backend/cuda/nsa_compress.cuh"
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

struct Kind {
  int head_dim, block, tiles, owner_words;
  bool trees;
};

constexpr int chunk_tile_bytes(int head_dim) { return 4 * kNsaTile * head_dim * 2; }

template <int D, int kBlock, int kTiles, bool kTrees>
void launch(Commands& commands, const Kind& kind, dim3 blocks, const NsaLaunch& args) {
  using Shared = NsaShared<D, kTiles * 16, kNsaBlockChains>;
  const Grid grid{.blocks = blocks,
      .threads = kNsaBlockChains * kTiles * 32,
      .shared_bytes = size_t(Shared::kOwners) + kind.owner_words * sizeof(uint32_t) +
          (kTrees ? size_t(kNsaBlockChains * 2 * Shared::kBesideBytes) : 0)};
  commands.launch(nsa_kernel<D, kBlock, kTiles, kTrees>, grid, args);
}
template <int D, int kBlock>
void launch_chunks(Commands& commands, int owner_words, dim3 blocks, const NsaLaunch& args) {
  using Shared = typename NsaChunk<D, kBlock>::Shared;
  static_assert(Shared::kTeamBytes == chunk_tile_bytes(D));
  const size_t shared_bytes = Shared::kOwners + owner_words * sizeof(uint32_t);
  commands.launch(
      nsa_chunk_kernel<D, kBlock>, {.blocks = blocks, .threads = kNsaChunkTiles * 32, .shared_bytes = shared_bytes}, args);
}
void launch_chunks_of(Commands& commands, int head_dim, int block, int owner_words, dim3 blocks, const NsaLaunch& args) {
  if (head_dim == 128) launch_chunks<128, 64>(commands, owner_words, blocks, args);
  else if (block == 64) launch_chunks<64, 64>(commands, owner_words, blocks, args);
  else if (block == 32) launch_chunks<64, 32>(commands, owner_words, blocks, args);
  else launch_chunks<64, 16>(commands, owner_words, blocks, args);
}
// `op` for the one of these numbers that `number` is.
template <int... kNumbers, class Op>
void with(int number, const Op& op) {
  const bool known = ((number == kNumbers && (op.template operator()<kNumbers>(), true)) || ...);
  HUNCH_CHECK(known);
}
void launch_kind(Commands& commands, const Kind& kind, dim3 blocks, const NsaLaunch& args) {
  const auto of_block = [&]<int D, int kBlock>() {
    with<1, 2, most_tiles(D)>(kind.tiles, [&]<int kTiles>() {
      if (kind.trees) launch<D, kBlock, kTiles, true>(commands, kind, blocks, args);
      else launch<D, kBlock, kTiles, false>(commands, kind, blocks, args);
    });
  };
  if (kind.head_dim == 128) return of_block.template operator()<128, 64>();
  with<64, 32, 16>(kind.block, [&]<int kBlock>() { of_block.template operator()<64, kBlock>(); });  // of models that exist
}

}

std::string nsa_lacks(const NsaShape& shape, int heads, int kv_heads, int head_dim) {
  if (!is_hopper()) return "natively trained sparse attention on devices before Hopper";
  if (head_dim != 64 && head_dim != 128) return "natively trained sparse attention over heads other than of 64 and 128";
  if (heads / kv_heads > 16) return "natively trained sparse attention of more than 16 query heads a KV head";
  if (shape.sel_block != 64 && !(head_dim == 64 && (shape.sel_block == 32 || shape.sel_block == 16)))
    return "selection blocks other than of 64 (heads of 64: 16 and 32, too)";
  if (shape.sel_count > kNsaMostPicks) return "more than 32 selected blocks";
  return {};
}

int64_t nsa_longest_context(const NsaShape& shape) { return int64_t(kNsaMostBlocks) * shape.sel_block; }

int most_grouped_rows(int head_dim, int group) {
  return std::min(kNsaMostGrouped, most_tiles(head_dim) * 16 / int(std::bit_ceil(unsigned(group))));
}

void CudaNsa::add_run(Commands& commands, const NsaShape& shape, const NsaRows& run, NsaDevice& device) {
  const auto upload = [&](const auto& values) { return commands.data(std::span(std::as_const(values))); };
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
  const int newest = *std::ranges::max_element(run.positions);
  device.entries = tree ? run.positions[0] : newest + 1, device.compressed_entries = int32_t(shape.rows_of(device.entries));
  device.owned = run.owned_rows, device.num_owned = run.num_owned;
  device.cmp_len = shape.cmp_len, device.cmp_stride = shape.cmp_stride, device.sel_count = shape.sel_count;
  device.init_blocks = shape.init_blocks, device.local_blocks = shape.local_blocks, device.window = shape.window;
  device.index = run.chosen;
  path_of_row_.assign(device.rows, tree ? -1 : 0), owned_path_of_row_.assign(device.rows, 0);
  path_rows_.clear(), path_owned_.clear(), leaf_.clear(), bundles_.clear(), owned_bundles_.clear(), beside_rows_.clear(),
      path_beside_.clear(), owned_stride_ = 0;
  if (tree) {
    find_paths(run);
    bundle_paths(device.raw.head_dim);
  }
  device.path_stride = leaf_.empty() ? 0 : int32_t(path_rows_.size() / leaf_.size());
  device.num_bundles = int32_t(bundles_.size()), device.num_owned_bundles = int32_t(owned_bundles_.size());
  device.path_of_row = upload(path_of_row_), device.path_rows = upload(path_rows_);
  device.bundles = upload(bundles_);
  device.owned_bundles = upload(owned_bundles_);
  device.beside_rows = upload(beside_rows_), device.path_beside = upload(path_beside_);
  device.owned_path_of_row = upload(owned_path_of_row_), device.path_compressed = upload(path_owned_),
  device.owned_stride = int32_t(owned_stride_);
}

// A path from the root to every row that is nobody's parent; of the rows on the way each stands on one of them. Paths on which
// the same compressed entries are completed are one owned path; as a rule none are, and there is no such path.
void CudaNsa::find_paths(const NsaRows& run) {
  const auto parent = [&](int row) { return run.parents[row]; };
  const int rows = int(run.positions.size());
  int deepest = 0;
  for (int row = rows - 1; row >= 0; --row) {
    deepest = std::max(deepest, run.positions[row] - run.positions[0]);
    if (path_of_row_[row] >= 0) continue;
    for (int at = row; at >= 0 && path_of_row_[at] < 0; at = parent(at)) path_of_row_[at] = int32_t(leaf_.size());
    leaf_.push_back(row);
  }
  path_rows_.assign(leaf_.size() * size_t(deepest + 1), -1), owned_of_path_.clear(), owned_stride_ = 0;
  for (size_t path = 0; path < leaf_.size(); ++path) {
    size_t owned = 0;
    for (int at = leaf_[path]; at >= 0; at = parent(at)) {
      path_rows_[path * size_t(deepest + 1) + size_t(run.positions[at] - run.positions[0])] = at;
      owned += run.owned[at] >= 0;
    }
    owned_stride_ = std::max(owned_stride_, owned);
  }
  std::vector<int32_t> list(owned_stride_);
  for (const int32_t leaf : leaf_) {
    list.clear();
    for (int at = leaf; at >= 0; at = parent(at))
      if (run.owned[at] >= 0) list.insert(list.begin(), run.owned[at]);
    list.resize(owned_stride_, -1);
    size_t same = 0;
    while (same < path_owned_.size() && !std::equal(list.begin(), list.end(), path_owned_.begin() + same)) same += owned_stride_;
    if (same == path_owned_.size()) path_owned_.insert(path_owned_.end(), list.begin(), list.end());
    owned_of_path_.push_back(owned_stride_ > 0 ? int32_t(same / owned_stride_) : 0);
  }
  for (int row = 0; row < rows; ++row) owned_path_of_row_[row] = owned_of_path_[path_of_row_[row]];
}

// Neighbouring paths go together as long as there is room for all their rows.
void CudaNsa::bundle_paths(int head_dim) {
  const size_t stride = path_rows_.size() / leaf_.size();
  path_beside_.assign(path_rows_.size(), -1);
  for (size_t path = 0; path < leaf_.size();) {
    NsaBundle bundle{int32_t(path), int32_t(path), int32_t(beside_rows_.size()), 0};
    const auto first = ptrdiff_t(bundle.first_beside);
    for (; path < leaf_.size(); ++path) {
      const size_t before = beside_rows_.size();
      for (size_t at = path * stride; at < (path + 1) * stride && path_rows_[at] >= 0; ++at) {
        const auto known = std::find(beside_rows_.begin() + first, beside_rows_.end(), path_rows_[at]);
        path_beside_[at] = int32_t(known - beside_rows_.begin() - first);
        if (known == beside_rows_.end()) beside_rows_.push_back(path_rows_[at]);
      }
      const bool fits = ptrdiff_t(beside_rows_.size()) - first <= nsa_beside(head_dim);
      if (!fits) beside_rows_.resize(before);
      if (!fits && bundle.end_path > bundle.first_path) break;
      bundle.end_path = int32_t(path + 1);
      if (!fits) {  // too long for that: it goes alone
        ++path;
        break;
      }
    }
    if (bundle.end_path == bundle.first_path + 1) beside_rows_.resize(bundle.first_beside);
    bundle.beside = int32_t(beside_rows_.size()) - bundle.first_beside;
    bundles_.push_back(bundle);
  }
  // Entries that nodes own are numbered, so that all of them are one bundle or every path is alone.
  const auto owned_paths = int32_t(owned_stride_ > 0 ? path_owned_.size() / owned_stride_ : 0);
  const int32_t owned = owned_paths > 0 ? *std::ranges::max_element(path_owned_) + 1 : 0;
  const bool fit = std::max(owned, owned_paths) <= nsa_beside(head_dim);
  for (int32_t path = 0; path < owned_paths && !fit; ++path) owned_bundles_.push_back({path, path + 1, 0, 0});
  if (owned_paths > 0 && fit) owned_bundles_.push_back({0, owned_paths, 0, owned});
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
      if (place >= run.tree.first_entry) at = run.tree.parents[at];
    }
  }
}

void CudaNsa::compress_kept(Commands& commands, const NsaAttentionArgs& args) {
  int64_t most_jobs = 0;
  // A layer may attend in several calls: what this one's runs do not read is left to those that do.
  std::erase_if(kept_, [&](const CompressKvArgs& kept) {
    const auto run = std::ranges::find_if(args.runs, [&](const NsaRun& r) { return r.kv.pages.data == kept.kv.pages.data; });
    if (run == args.runs.end()) return false;
    for (int64_t i = kept.first; i < kept.last; ++i)
      jobs_.push_back({.run = int32_t(run - args.runs.begin()), .index = int32_t(i), .to = int32_t(i)});
    return true;
  });
  // As many blocks whatever there is to do this time: every stride of new rows may complete one, and every row of a tree.
  for (const NsaRun& run : args.runs)
    most_jobs += run.tree.parents.empty() ? run.num_rows / args.nsa.shape->cmp_stride + 1 : grid_rows(run.num_rows);
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
          .threads = unsigned(dim / 2 * kNsaCompressParts),
          .shared_bytes = size_t(shape.cmp_len * dim) * 2 * sizeof(float)},
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
  owned_.reserve(trees);  // spans of it stay
  for (size_t r = 0; r < args.runs.size(); ++r) {
    const NsaRun& run = args.runs[r];
    NsaRows rows;
    rows.raw = kv_plane(run.kv, args.layer), rows.compressed = kv_plane(run.rows, args.layer);
    rows.raw_pages = run.kv.pages, rows.compressed_pages = run.rows.pages;
    rows.q = args.q.slice(run.first_row, run.num_rows), rows.gates = args.gates.slice(run.first_row, run.num_rows);
    if (args.out.data) rows.out = args.out.slice(run.first_row, run.num_rows);
    HUNCH_CHECK(run.last.stride[0] == 1 || run.num_rows == 1);
    rows.positions = std::span(run.last.data, run.num_rows);
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
  int most_blocks = 0;
  int64_t rows = 0, pooled_stride = 0, owned = 0;
  for (size_t r = 0; r < runs.size(); ++r) {
    add_run(commands, shape, runs[r], devices_[r]);
    const int newest = *std::ranges::max_element(runs[r].positions);
    most_blocks = std::max(most_blocks, newest / shape.sel_block + 1);
    pooled_stride = std::max(pooled_stride, int64_t(newest / shape.cmp_stride / kNsaTile + 1) * kNsaTile);
    rows += devices_[r].rows, owned += runs[r].num_owned;
  }
  const NsaDevice& first = devices_[0];
  const int dim = first.raw.head_dim, heads = first.kv_heads * first.group;
  HUNCH_CHECK(nsa_lacks(shape, heads, first.kv_heads, dim).empty() && most_blocks <= kNsaMostBlocks);
  // Runs of many groups: a block takes one, if there are some blocks for a device, and scores of blocks fit where tiles stand.
  const int shift = first.group_shift, of_chunk = std::min(kNsaMostGrouped, kNsaChunkTiles * 16 >> shift);
  const int words = std::max(512, int(std::bit_ceil(unsigned(most_blocks + kNsaChains))));  // in steps, so that graphs fit again
  const bool exact = grouping.rows == 0 && !grouping.shared && !grouping.apart;
  const bool may = exact && runs[0].out.data && !runs[0].given && of_chunk << shift > 32 && words * 4 <= chunk_tile_bytes(dim);
  const auto is_chunk = [&](const NsaDevice& d) { return may && d.num_bundles == 0 && d.rows << shift > 32; };
  const auto groups_of = [&](const NsaDevice& d) { return (d.rows - 1) / of_chunk + 1; };
  int groups = 0, most_groups = 0, most_rows = 0;
  for (const NsaDevice& d : devices_)
    if (is_chunk(d)) groups += groups_of(d), most_groups = std::max(most_groups, groups_of(d));
  const bool chunks = groups * first.kv_heads >= device_facts().num_sms / 3;
  int few = 0;  // runs of clusters
  for (const NsaDevice& d : devices_)
    if (!chunks || !is_chunk(d)) ++few, most_rows = std::max(most_rows, d.rows);
  const int most = most_grouped_rows(dim, first.group);
  int grouped = std::min({grouping.rows > 0 ? grouping.rows : most, most, most_rows});
  const auto blocks_of = [&](int of_group) {
    return unsigned(kNsaBlocks * first.kv_heads * ((most_rows + of_group - 1) / of_group));
  };
  // Fewer rows a group are faster as long as clusters find SMs of their own, down to a warp's.
  while (exact && grouped << shift > 16 && int(blocks_of((grouped + 1) / 2)) * few <= device_facts().num_sms * 3 / 4)
    grouped = (grouped + 1) / 2;
  const int slots = most_blocks / kNsaBlocks + kNsaBlockChains + 1;
  Kind kind{.head_dim = dim, .block = shape.sel_block, .tiles = 1};
  kind.owner_words = std::max(512, int(std::bit_ceil(unsigned(slots))));  // in steps, so that graphs fit again
  kind.trees = std::ranges::any_of(runs, [](const NsaRows& run) { return !run.parents.empty(); });
  while (kind.tiles * 16 < grouped << shift) kind.tiles *= 2;
  // Floats: branches' outcomes, pooled weights, entries that trees own (K and V in bf16), choices.
  const int64_t part = grouping.apart ? rows * heads * dim : 0, pooled = rows * first.kv_heads * pooled_stride;
  const int64_t owned_part = owned * first.kv_heads * dim, chosen = rows * first.kv_heads * shape.sel_count;
  auto* memory = static_cast<float*>(commands.workspace(size_t(3 * part + pooled + owned_part + chosen) * sizeof(float)));
  float* owned_rows = memory + 3 * part + pooled;
  auto* choices = reinterpret_cast<int32_t*>(owned_rows + owned_part);
  int64_t before = 0;
  for (size_t r = 0; r < runs.size(); ++r) {
    NsaDevice& device = devices_[r];
    const bool chunk = chunks && is_chunk(device);
    device.owner_words = chunk ? words : kind.owner_words, device.grouped = chunk ? of_chunk : grouped,
    device.scale_log2 = scale * kNsaLog2E, device.shared = grouping.shared;
    device.compressed_out = memory + before * heads * dim, device.selected_out = device.compressed_out + part;
    device.window_out = device.selected_out + part;
    device.pooled = memory + 3 * part + before * first.kv_heads * pooled_stride, device.pooled_stride = pooled_stride;
    if (!device.index) device.index = choices + before * first.kv_heads * shape.sel_count;
    if (!device.owned) device.owned = reinterpret_cast<const std::byte*>(owned_rows);
    owned_rows += int64_t(runs[r].num_owned) * first.kv_heads * dim;
    before += device.rows;
  }
  if (op) compress_kept(commands, *op);
  if (chunks) {
    std::ranges::stable_partition(devices_, [&](const NsaDevice& d) { return !is_chunk(d); });
    for (NsaDevice& device : devices_) device.choose = 1;
    const std::span<const NsaDevice> many(devices_.begin() + few, devices_.end());
    launch_chunks_of(commands, dim, shape.sel_block, words, dim3(unsigned(most_groups * first.kv_heads), unsigned(many.size())),
        NsaLaunch{commands.data(many)});
    commands.launched_long();
    devices_.resize(few);
    if (few == 0) return;
  }
  const dim3 blocks(blocks_of(grouped), unsigned(few));
  const auto run = [&](int32_t branches, bool choose) {
    for (NsaDevice& device : devices_) device.branches = branches, device.choose = choose, device.apart = grouping.apart;
    launch_kind(commands, kind, blocks, NsaLaunch{commands.data(std::span<const NsaDevice>(devices_))});
  };
  const bool choose = !runs[0].given;
  if (!runs[0].out.data) return run(kNsaCompressed, true);  // they want to choose only
  if (!grouping.apart) return run(kNsaCompressed | kNsaSelected | kNsaWindow, choose);
  run(kNsaCompressed, choose), run(kNsaSelected, false), run(kNsaWindow, false);
  commands.launch(nsa_mix_kernel, {.blocks = dim3(64, unsigned(runs.size())), .threads = 256},
      NsaLaunch{commands.data(std::span<const NsaDevice>(devices_))});
}

}
