// See attention.h. Here: which runs go together and what the kernels are told.
#include "backend/cuda/attention.h"

#include <algorithm>

#include "backend/cuda/attention_combine.cuh"
#include "backend/cuda/attention_general.cuh"
#include "backend/cuda/attention_kernel.cuh"

namespace hunch {
namespace {

constexpr int kMostRowsOfWarp = 8, kSlotsOfTurn = 8, kMostTensorGroup = 16, kMostLineColumns = 16;

int shift_of(int group) {
  int shift = 0;
  while ((1 << shift) < group) ++shift;
  return shift;
}

// The form for a tile of so many packed rows: columns for them in the instruction; 0: rows (attention_consumer.cuh).
int columns_for(int64_t packed) {
  for (const int columns : {8, 16, 32})
    if (packed <= columns) return columns;
  return 0;
}

template <class Consumer, bool kPaired = false>
void launch_form(Commands& commands, int blocks, const AttentionDevice& device) {
  commands.launch(attention_kernel<Consumer, kPaired>,
      {.blocks = dim3(unsigned(blocks)), .threads = kAttentionThreads, .shared_bytes = Consumer::Shared::kBytes}, device);
}
template <int D, class T>
void launch_tensor(
    Commands& commands, int blocks, int columns, bool paired, bool lines, bool scored, const AttentionDevice& device) {
  if constexpr (!std::is_same_v<T, Coded>) {
    if (lines && columns == 8) return launch_form<ColumnConsumer<D, T, 8, true>>(commands, blocks, device);
    if (lines) return launch_form<ColumnConsumer<D, T, 16, true>>(commands, blocks, device);
  }
  if (paired && scored) launch_form<RowConsumer<D, T, true, true>, true>(commands, blocks, device);
  else if (paired) launch_form<RowConsumer<D, T, true, false>, true>(commands, blocks, device);
  else if (columns == 8) launch_form<ColumnConsumer<D, T, 8>>(commands, blocks, device);
  else if (columns == 16) launch_form<ColumnConsumer<D, T, 16>>(commands, blocks, device);
  else if (columns == 32) launch_form<ColumnConsumer<D, T, 32>>(commands, blocks, device);
  else if (scored) launch_form<RowConsumer<D, T, false, true>>(commands, blocks, device);
  else launch_form<RowConsumer<D, T, false, false>>(commands, blocks, device);
}

int64_t plane_stride(int64_t prefix_len) { return (prefix_len + kPageLen - 1) / kPageLen * kPageLen; }

}

struct CudaAttention::Call {
  int layer = 0;
  float scale = 1;
  View<const float, 3> q;
  View<float, 3> out;
  View<float, 2> lse;
  const float* sinks = nullptr;
  int group = 1, shift = 0, head_dim = 0;
};

CudaAttention::CudaAttention(int most_blocks) : most_blocks_(most_blocks), launches_(kMostPlans) {
  constexpr size_t kUsualRuns = 64;  // more grow their lists once
  wanted_.reserve(kMostPlans), sorted_.reserve(kMostPlans);
  devices_.reserve(kUsualRuns), reductions_.reserve(kUsualRuns);
}

// The plan of earlier calls that fits, or a place for a new one.
CudaAttention::Launch& CudaAttention::place_for(const Launch& wanted) {
  for (Launch& known : launches_)
    if (known.same_plan(wanted)) {
      known.runs = wanted.runs;
      return known;
    }
  while (std::ranges::find(sorted_, &launches_[next_]) != sorted_.end()) next_ = (next_ + 1) % kMostPlans;
  Launch& place = launches_[next_];
  next_ = (next_ + 1) % kMostPlans;
  place.begin(wanted);
  place.runs = wanted.runs, place.planned.copy(wanted.planned);
  return place;
}

CudaAttention::Count::~Count() {
  if (device) (void)cudaFree(device);
}

// Whether these are the runs of the call before, of the layer before as a rule, and all in one launch. That now has these.
bool CudaAttention::sorted_already(const AttentionArgs& args) {
  if (sorted_.size() != 1 || sorted_[0]->runs.size() != args.runs.size() || sorted_heads_ != args.q.extent[1]) return false;
  Launch& launch = *sorted_[0];
  for (size_t i = 0; i < args.runs.size(); ++i) {
    const AttentionRun& run = args.runs[i];
    const PlannedRun& planned = launch.planned[i];
    bool same = planned.first_row == run.first_row && std::ssize(planned.last) == run.num_rows && planned.window == run.window &&
        planned.first == run.first && run.head_first.empty() && run.tree.parents.empty() && planned.parents.empty() &&
        (planned.split_blocks == kSelectedSplitBlocks) == (run.index.data != nullptr) &&
        planned.kv_heads == run.kv.store->kv_heads && launch.dtype == run.kv.store->dtype &&
        launch.head_dim == run.kv.store->head_dim && first_allowed(run);
    for (int64_t row = 0; same && row < run.num_rows; ++row) same = planned.last[row] == run.last(row);
    if (!same) return false;
    launch.runs[i] = &run;
  }
  return true;
}

void CudaAttention::enqueue(Commands& commands, const AttentionArgs& args) {
  if (!sorted_already(args)) sort(args);
  kv_bytes_ += sorted_bytes_;
  for (Launch* launch : sorted_) {
    Call call{args.layer, args.scale, args.q, args.out, args.lse, args.sinks};
    call.group = launch->group, call.shift = shift_of(call.group), call.head_dim = launch->head_dim;
    run(commands, *launch, call);
  }
  // Rows of many M tiles leave their scores in a second look at K, only the rows that are used.
  for (const AttentionRun& run : args.runs) {
    if (run.num_rows == 0 || run.scores.metric == ScoreMetric::None || run.scores.prefix_len == 0) continue;
    const int shift = shift_of(int(args.q.extent[1]) / run.kv.store->kv_heads);
    const bool general = !kv_plane(run.kv, args.layer).on_tensor_cores || (1 << shift) > kMostTensorGroup;
    if (general || (run.num_rows << shift) > 2 * kTileRows)
      score(commands, args.layer, args.scale, args.q, run.first_row, run.kv, run.scores);
    else score_bytes_ += uint64_t(run.scores.out.extent[0] * run.scores.count()) * sizeof(float);
  }
}

// Runs of one kind to one launch.
void CudaAttention::sort(const AttentionArgs& args) {
  wanted_.clear(), sorted_.clear(), sorted_heads_ = args.q.extent[1], sorted_bytes_ = 0;
  const auto columns_of = [&](const AttentionRun& run) {
    return columns_for(run.num_rows << shift_of(int(args.q.extent[1]) / run.kv.store->kv_heads));
  };
  const auto in_lines = [&](const AttentionRun& run) {
    return run.index.data && kv_plane(run.kv, args.layer).maps && columns_of(run) > 0 && columns_of(run) <= kMostLineColumns;
  };
  int most_columns[2] = {};  // runs of few rows go in one launch, in lines or not: what the largest needs
  for (const AttentionRun& run : args.runs) most_columns[in_lines(run)] = std::max(most_columns[in_lines(run)], columns_of(run));
  for (const AttentionRun& run : args.runs) {
    if (run.num_rows == 0) continue;
    const auto& store = *run.kv.store;
    const int group = int(args.q.extent[1]) / store.kv_heads, shift = shift_of(group);
    HUNCH_CHECK(group * store.kv_heads == args.q.extent[1] && args.q.extent[2] == store.head_dim && args.scale > 0);
    PlannedRun& planned = planned_;
    planned.reset();
    HUNCH_CHECK(first_allowed(run) && run.head_first.empty() && run.first < kFarFuture);
    planned.kv_heads = store.kv_heads, planned.window = run.window, planned.first = run.first;
    planned.first_row = run.first_row;
    if (run.index.data) planned.split_blocks = kSelectedSplitBlocks;
    for (int64_t row = 0; row < run.num_rows; ++row) planned.rows.push_back(int32_t(row)), planned.last.push_back(run.last(row));
    if (!run.tree.parents.empty() && !is_chain(run.tree, run.num_rows)) {
      planned.parents.assign(run.tree.parents.begin(), run.tree.parents.end());
      planned.tree_first = run.tree.first, planned.tree_entry = run.tree.first_entry;
    }
    HUNCH_CHECK(run.scores.metric == ScoreMetric::None || !run.index.data);
    Launch launch;
    launch.general = !kv_plane(run.kv, args.layer).on_tensor_cores || group > kMostTensorGroup;
    launch.paired = !launch.general && (run.num_rows << shift) > kTileRows;
    launch.lines = !launch.general && in_lines(run);
    launch.columns = launch.general || columns_of(run) == 0 ? 0 : most_columns[launch.lines];
    launch.dtype = store.dtype, launch.head_dim = store.head_dim, launch.group = group;
    launch.unpacked = launch.paired && !kv_plane(run.kv, args.layer).maps &&
        run.num_rows >= UnpackedKv::fewest_rows(store.dtype) && !run.index.data && run.tree.parents.empty();
    const auto all = wanted_.all();
    const auto place = std::ranges::find_if(all, [&](const Launch& l) { return l.same_kind(launch); });
    if (place == all.end()) wanted_.add().begin(launch);
    Launch& to = place == all.end() ? wanted_.back() : *place;
    to.runs.push_back(&run), to.planned.add() = planned;
    const int64_t heads = store.kv_heads, row_bytes = int64_t(2 * kv_row_bytes(store.dtype, store.head_dim));
    int32_t least = kFarFuture, most = 0;
    for (int64_t row = 0; row < run.num_rows; ++row) least = std::min(least, run.last(row)), most = std::max(most, run.last(row));
    sorted_bytes_ += uint64_t(heads * row_bytes * std::max<int64_t>(0, most + 1 - oldest_entry(run, least)));
  }
  for (const Launch& launch : wanted_.all()) sorted_.push_back(&place_for(launch));
}

void CudaAttention::enqueue(Commands& commands, const ScoreKeysArgs& args) {
  if (args.scores.metric == ScoreMetric::None || args.scores.prefix_len == 0) return;
  score(commands, args.layer, args.scale, args.q, 0, args.kv, args.scores);
}

void CudaAttention::score(Commands& commands, int layer, float scale, View<const float, 3> q, int64_t first_row, const KvRef& kv,
    const ScoreArgs& scores) {
  const auto& store = *kv.store;
  Call call;
  call.layer = layer, call.scale = scale, call.q = q, call.head_dim = store.head_dim;
  call.group = int(q.extent[1]) / store.kv_heads, call.shift = shift_of(call.group);
  AttentionRun run;
  run.first_row = first_row, run.num_rows = scores.row_used.extent[0], run.kv = kv, run.scores = scores;
  wanted_.clear(), sorted_.clear();
  Launch& launch = wanted_.add();
  launch.begin(Launch{.keys_only = true});
  PlannedRun& planned = launch.planned.add();
  planned.reset();
  planned.kv_heads = store.kv_heads, planned.end_entry = scores.prefix_len;
  for (int64_t row = 0; row < run.num_rows; ++row)
    if (scores.row_used(row)) planned.rows.push_back(int32_t(row));
  if (planned.rows.empty()) planned.rows.push_back(0);  // not used, but somebody must write the scores of nobody
  launch.general = !kv_plane(kv, layer).on_tensor_cores || call.group > kMostTensorGroup;
  launch.paired = !launch.general && (std::ssize(planned.rows) << call.shift) > kTileRows;
  launch.columns = launch.general ? 0 : columns_for(std::ssize(planned.rows) << call.shift);
  launch.dtype = store.dtype, launch.head_dim = store.head_dim, launch.group = call.group;
  launch.runs.push_back(&run);
  this->run(commands, place_for(launch), call);
  kv_bytes_ += uint64_t(scores.prefix_len) * uint64_t(store.kv_heads) * kv_row_bytes(store.dtype, store.head_dim);
  score_bytes_ += uint64_t(scores.out.extent[0] * scores.count()) * sizeof(float);
}

void CudaAttention::Launch::list_combined(int padded_group, int group) {
  combined.clear(), tiles.clear(), row_heads = 0, most_tile_rows = 0;
  if (keys_only) return;
  for (size_t r = 0; r < runs.size(); ++r) row_heads += std::ssize(planned[r].rows) * planned[r].kv_heads * group;
  // Eight warps of a block share a row's partials, or a warp has rows of its own: where blocks would take turns longer than a
  // warp takes for so many partials.
  const int64_t sms = device_facts().num_sms, turns = row_heads / (2 * sms);
  const bool tile_by_tile = turns > 0 && std::ssize(plan.slot_list) <= kSlotsOfTurn * turns * std::ssize(plan.units);
  for (rows_of_warp = 1; rows_of_warp < kMostRowsOfWarp && row_heads > sms * kWarpsOfSm * rows_of_warp;) rows_of_warp *= 2;
  for (size_t r = 0; r < runs.size(); ++r)
    for (int kv_head = 0; kv_head < planned[r].kv_heads; ++kv_head) {
      const AttentionUnitDevice* units = &plan.units[plan.run_units[r] + kv_head * plan.run_tiles[r]];
      const int first_row = int(planned[r].first_row);
      if (tile_by_tile) {
        for (int t = 0; t < plan.run_tiles[r]; ++t) {
          const AttentionSuperDevice &first = plan.supers[units[t].first_super],
                                     &last = plan.supers[units[t].first_super + units[t].num_supers - 1];
          tiles.push_back({first.first_slot, last.first_slot + last.num_slots - first.first_slot, units[t].rows, first_row,
              t * kTileRows, padded_group, kv_head});
          most_tile_rows = std::max(most_tile_rows, units[t].rows);
        }
      } else {
        for (const int32_t row : planned[r].rows) {
          const int packed = row * padded_group;
          const AttentionUnitDevice& unit = units[packed / kTileRows];
          combined.push_back({unit.first_super, unit.num_supers, unit.rows, packed % kTileRows, first_row + row, kv_head});
        }
      }
    }
}

// Once a list: all layers have one plan, and their sequences' pages stay what they are.
void CudaAttention::Launch::copy_to_device(Commands& commands) {
  const auto upload = [&](const auto& values) { return commands.data(std::span(values.data(), values.size())); };
  if (there.list != commands.list()) {
    there.list = commands.list();
    there.items = upload(plan.items), there.worker_items = upload(plan.worker_items);
    there.supers = upload(plan.supers), there.slots = upload(plan.slot_list);
    there.combined = upload(combined), there.tiles = upload(tiles);
    there.last.clear(), there.pages.assign(runs.size(), {});
    for (const PlannedRun& run : planned.all()) there.last.push_back(upload(run.last));
  }
  for (size_t r = 0; r < runs.size(); ++r) {
    auto& [host, device] = there.pages[r];
    const View<const int32_t, 1> pages = runs[r]->kv.pages;
    if (host.data != pages.data || host.extent[0] != pages.extent[0]) host = pages, device = commands.data(pages);
  }
}

void CudaAttention::run(Commands& commands, Launch& launch, const Call& call) {
  commands.begin_op();
  const int sms = device_facts().num_sms, blocks = most_blocks_ ? std::min(most_blocks_, sms) : sms;
  if (!launch.planned_already) {
    const int workers = launch.paired ? blocks : 2 * blocks;
    plan_attention(
        launch.plan, launch.planned.all(), 1 << call.shift, launch.keys_only ? 0 : call.head_dim, launch.paired, workers);
    launch.used.clear(), launch.used_index.clear();
    for (size_t r = 0; r < launch.runs.size(); ++r) launch.used.add(), launch.used_index.add();
    launch.list_combined(1 << call.shift, call.group);
    launch.planned_already = true;
  }
  const AttentionPlan& plan = launch.plan;
  const auto upload = [&](const auto& values) { return commands.data(std::span(values.data(), values.size())); };

  std::span<const UnpackedKv::Run> unpacked;
  if (launch.unpacked) unpacked = unpacked_.enqueue(commands, call.layer, launch.runs);
  launch.copy_to_device(commands);
  const Launch::There& there = launch.there;

  std::vector<AttentionRunDevice>& devices = devices_;
  std::vector<ReduceScoresDevice>& reductions = reductions_;
  devices.clear(), reductions.clear();
  int64_t floats = plan.partial_floats;
  for (size_t r = 0; r < launch.runs.size(); ++r) {
    const AttentionRun& run = *launch.runs[r];
    AttentionRunDevice device;
    if (r > 0 && unpacked.empty() && run.kv.store == launch.runs[r - 1]->kv.store) device.plane = devices.back().plane;
    else device.plane = kv_plane(run.kv, call.layer);
    device.pages = there.pages[r].second;
    if (!unpacked.empty()) device.plane = unpacked[r].plane, device.pages = unpacked[r].pages;
    device.first_row = int32_t(run.first_row), device.num_rows = int32_t(launch.planned[r].rows.size());
    device.window = run.window, device.first = int32_t(run.first);
    if (run.index.data) {
      HUNCH_CHECK(run.index.stride[1] == 1);
      device.index = run.index.data, device.index_stride = run.index.extent[0] == 1 ? 0 : run.index.stride[0];
      device.count = int32_t(run.index.extent[1]), device.tail_first = int32_t(run.tail_first);
    }
    if (commands.settled()) device.settled = int32_t(run.settled);
    if (launch.keys_only) device.rows = upload(launch.planned[r].rows);
    else device.last = there.last[r];
    if (!launch.planned[r].parents.empty()) {
      device.tree_entry = int32_t(run.tree.first_entry), device.leaf_of_row = upload(plan.leaf_of_row[r]);
      device.leaves = upload(plan.leaves), device.paths = upload(plan.paths);
    }
    const ScoreArgs& scores = run.scores;
    const int64_t packed = std::ssize(launch.planned[r].rows) << call.shift;
    const bool here = launch.keys_only || (!launch.general && packed <= 2 * kTileRows);
    if (here && scores.metric != ScoreMetric::None && scores.prefix_len > 0) {
      const int kv_heads = device.plane.kv_heads;
      const bool shared = scores.out.extent[0] == 1 && kv_heads > 1;
      HUNCH_CHECK(scores.out.extent[0] == 1 || scores.out.extent[0] == kv_heads);
      HUNCH_CHECK((scores.block == 1 || scores.block == kScoreBlock) && scores.prefix_len % scores.block == 0);
      device.sink = shared                        ? ScoreSink::Rows
          : packed > kTileRows && !launch.general ? ScoreSink::Groups
          : scores.block > 1                      ? ScoreSink::Blocks
                                                  : ScoreSink::Direct;
      device.weight = scores.metric == ScoreMetric::Weight, device.sum = scores.combine == ScoreCombine::Sum;
      device.prefix_len = int32_t(scores.prefix_len), device.block = scores.block;
      device.mean = 1.0f / float(shared ? kv_heads * call.group : call.group);
      auto& used = launch.used[r];
      auto& used_index = launch.used_index[r];
      used.assign(run.num_rows, 0), used_index.assign(run.num_rows, 0);
      int num_used = 0;
      for (int64_t row = 0; row < run.num_rows; ++row)
        if (scores.row_used(row)) used[row] = 1, used_index[row] = num_used++;
      device.row_used = upload(used), device.used_index = upload(used_index);
      device.lse = scores.lse.data, device.lse_row = scores.lse.stride[0], device.lse_head = scores.lse.stride[1];
      device.scores = scores.out.data, device.scores_stride = scores.out.stride[0];
      if (!launch.general && (device.sink == ScoreSink::Rows || device.sink == ScoreSink::Groups)) {
        ReduceScoresDevice reduce;
        reduce.plane_stride = plane_stride(scores.prefix_len), reduce.out_stride = scores.out.stride[0];
        reduce.out = scores.out.data;
        reduce.prefix_len = device.prefix_len, reduce.block = device.block;
        reduce.sum = device.sum, reduce.kv_heads = kv_heads;
        reduce.by_rows = shared, reduce.mean = device.mean;
        reduce.groups = shared ? num_used : int((packed + kTileRows - 1) / kTileRows);
        reduce.planes =
            reinterpret_cast<const float*>(floats * int64_t(sizeof(float)));  // an offset until the workspace is known
        device.scores = reinterpret_cast<float*>(floats * int64_t(sizeof(float)));
        device.scores_stride = reduce.plane_stride;
        floats += int64_t(reduce.groups) * kv_heads * reduce.plane_stride;
        reductions.push_back(reduce);
      }
    }
    devices.push_back(device);
  }
  auto* workspace = static_cast<float*>(commands.workspace(floats * sizeof(float)));
  const auto place = [&](const float* offset) { return workspace + reinterpret_cast<int64_t>(offset) / int64_t(sizeof(float)); };
  for (AttentionRunDevice& device : devices)
    if (!launch.general && (device.sink == ScoreSink::Rows || device.sink == ScoreSink::Groups))
      device.scores = place(device.scores);

  bool scored = false;
  for (const AttentionRunDevice& run : devices) scored |= run.sink != ScoreSink::None;

  AttentionDevice device;
  device.runs = upload(devices), device.items = there.items, device.num_items = int32_t(plan.items.size());
  device.worker_items = there.worker_items, device.first_shared = plan.worker_items.back();
  if (!taken_) {
    taken_ = std::make_unique<Count>();
    HUNCH_CUDA_CHECK(cudaMalloc(&taken_->device, sizeof(uint32_t)));
    HUNCH_CUDA_CHECK(cudaMemset(taken_->device, 0, sizeof(uint32_t)));
    HUNCH_CUDA_CHECK(cudaDeviceSynchronize());
  }
  device.taken = taken_->device, device.taken_before = taken_->before;
  // Every item left over is taken once, and every worker asks once in vain.
  if (!launch.general)
    taken_->before += uint32_t(plan.items.size()) - uint32_t(plan.worker_items.back()) + uint32_t(plan.worker_items.size() - 1);
  device.q = call.q.data, device.q_row = call.q.stride[0], device.q_head = call.q.stride[1];
  HUNCH_CHECK(call.q.stride[2] == 1 && device.q_row % 4 == 0 && device.q_head % 4 == 0);
  KvScale scale;  // of codes, which have one a layer and are multiplied without it
  if (!launch.general && launch.dtype == DType::F8_E4M3) scale = devices[0].plane.scale;
  for (const AttentionRunDevice& run : devices)
    HUNCH_CHECK(
        launch.general || (run.plane.scale.k == devices[0].plane.scale.k && run.plane.scale.v == devices[0].plane.scale.v));
  device.partials = workspace, device.scale_log2 = call.scale * scale.k * kLog2E;
  device.group = call.group, device.group_shift = call.shift;
  device.keys_only = launch.keys_only, device.reread = plan.reread;
  if (launch.general && launch.keys_only) {
    HUNCH_CHECK(call.head_dim <= 32 * kHeld);
    const AttentionRunDevice& run = devices[0];
    if (launch.dtype == DType::BF16 && run.sink == ScoreSink::Direct && !run.weight && call.group == 1 &&
        call.head_dim % 8 == 0 && call.head_dim <= kPairKey)
      commands.launch(pair_scores_kernel, {.blocks = dim3(unsigned(sms) * kPairBlocks), .threads = 128}, device);
    else commands.launch(general_scores_kernel, {.blocks = dim3(unsigned(sms) * 8), .threads = 128}, device);
    return;
  }
  if (launch.general) {
    const size_t shared = size_t(kGeneralWarps) * 2 * call.head_dim * sizeof(float);
    commands.launch(general_attention_kernel,
        {.blocks = dim3(unsigned(sms) * 2), .threads = kGeneralWarps * 32, .shared_bytes = shared}, device);
  } else {
    const auto of_type = [&]<class T>(T*) {
      if (call.head_dim == 128)
        launch_tensor<128, T>(commands, blocks, launch.columns, launch.paired, launch.lines, scored, device);
      else launch_tensor<64, T>(commands, blocks, launch.columns, launch.paired, launch.lines, scored, device);
    };
    if (launch.dtype == DType::BF16) of_type(static_cast<__nv_bfloat16*>(nullptr));
    else if (launch.dtype == DType::F16 || !unpacked.empty()) of_type(static_cast<__half*>(nullptr));
    else of_type(static_cast<Coded*>(nullptr));
  }
  if (!launch.general) commands.launched_barrier();
  if (!launch.keys_only) {
    CombineDevice combine;
    combine.supers = there.supers, combine.slots = there.slots, combine.partials = workspace;
    combine.out = call.out.data, combine.out_row = call.out.stride[0], combine.out_head = call.out.stride[1];
    HUNCH_CHECK(call.out.stride[2] == 1 && combine.out_row % 4 == 0 && combine.out_head % 4 == 0);
    combine.lse = call.lse.data, combine.lse_row = call.lse.stride[0], combine.lse_head = call.lse.stride[1];
    combine.heads = int32_t(call.q.extent[1]);
    combine.group = call.group, combine.head_dim = call.head_dim, combine.sinks = call.sinks, combine.value_scale = scale.v;
    // The product behind takes them all as they are, if nothing comes between.
    View<float, 2> out(call.out.data, call.out.extent[0], call.q.extent[1] * call.head_dim);
    out.stride[0] = combine.out_row;
    const bool all = launch.row_heads == out.extent[0] * combine.heads && combine.out_head == call.head_dim;
    const PackedRows packed = all ? wanted_packed(commands, out.extent[0], out.extent[1]) : PackedRows{};
    combine.packed = packed.at, combine.packed_blocks = packed.blocks;
    if (!launch.tiles.empty()) {
      combine.tiles = there.tiles, combine.rows_of_warp = launch.rows_of_warp;
      combine.blocks_of_tile = (launch.most_tile_rows - 1) / (kTileWarps * launch.rows_of_warp) + 1;
      combine.count = int32_t(launch.tiles.size());
      commands.launch(launch.rows_of_warp == 1 ? combine_tiles_kernel<true> : combine_tiles_kernel<false>,
          {.blocks = dim3(unsigned(grid_rows(combine.count) * combine.blocks_of_tile)), .threads = kTileWarps * 32}, combine);
    } else {
      combine.rows = there.combined, combine.count = int32_t(launch.row_heads);
      const int64_t rows = (launch.row_heads - 1) / combine.heads + 1;
      commands.launch(
          combine_kernel, {.blocks = dim3(unsigned(grid_rows(rows) * combine.heads)), .threads = kCombineWarps * 32}, combine);
    }
    if (packed.at) commands.set_packed(out);
  }
  for (ReduceScoresDevice& reduce : reductions) {
    reduce.planes = place(reduce.planes);
    commands.launch(reduce_scores_kernel, {.blocks = dim3(unsigned(sms) * 4), .threads = 256}, reduce);
  }
}

}
