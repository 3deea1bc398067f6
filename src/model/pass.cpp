#include "model/pass.h"

#include <numeric>

#include "base/clock.h"

namespace hunch {
namespace {

// Scratch of one pass: the decoder's activations, slowest layer shape times rows, and some slack for rounding to cache lines.
size_t scratch_bytes(const ModelShape& shape, const PassLimits& limits) {
  const int64_t attention = int64_t(shape.heads) * shape.head_dim, kv = int64_t(shape.kv_heads) * shape.head_dim;
  const int64_t experts = shape.num_experts > 0 ? 2 * shape.hidden + shape.num_experts + 2 * shape.experts_per_token : 0;
  const int64_t floats_per_row = 3 * shape.hidden + 2 * attention + 2 * kv + 2 * shape.widest_ffn() + shape.head_dim + experts +
      (shape.nsa.used() ? 3 * int64_t(shape.heads) + 16 : 0) + shape.latent.q_rank +
      shape.heads * std::max(shape.latent.nope + shape.latent.rope, shape.latent.value);
  return size_t(floats_per_row + limits.floats_per_row) * limits.max_rows * sizeof(float) + 64 * 32;
}

// A row's position behind first_position: its number in a chain, its depth in a tree.
int offset_of(const Segment& segment, int row) {
  if (segment.parents.empty()) return row;
  int depth = 0;
  for (int at = segment.parents[segment.round_row + row]; at >= 0; at = segment.parents[at]) ++depth;
  return depth;
}

// A tree's rows stand in order of their numbers, whatever their depths.
int64_t first_stored(const Segment& segment, int64_t first_entry) {
  return first_entry + (segment.parents.empty() ? 0 : segment.round_row);
}

// Calls `visit` with the rows of every group that shares its choices.
void each_group(const Segment& segment, std::vector<int>& order, auto visit) {
  traverse(segment.parents, segment.num_rows, segment.sharing->depth_first, order);
  const size_t size = segment.sharing->group_rows;
  for (size_t at = 0; at < order.size(); at += size) visit(std::span(order).subspan(at, std::min(order.size() - at, size)));
}

}

Pass::Pass(Backend& backend, const ModelShape& shape, KvStore& store, const PassLimits& limits)
    : backend_(backend), shape_(shape), store_(store), limits_(limits), arena_(backend.allocate(scratch_bytes(shape, limits))) {
  const size_t rows = limits.max_rows;
  positions_.resize(rows), last_.resize(rows), used_.resize(rows);
  lse_ = backend.allocate(rows * shape.heads * sizeof(float));
  segments_.reserve(limits.max_segments);
  runs_.reserve(limits.max_segments), parts_.reserve(limits.max_segments);
  if (!limits.compressed) return;
  compressed_pages_.resize(limits.compressed->num_pages);
  std::iota(compressed_pages_.begin(), compressed_pages_.end(), 0);
  compressing_.reserve(limits.max_segments), nsa_runs_.reserve(limits.max_segments);
  listed_shape_ = shape.nsa, listed_shape_.sel_count = shared_list_len(shape.nsa);
  const size_t lists = rows * shape.kv_heads * sizeof(int32_t);
  chosen_ = backend.allocate(lists * shape.nsa.sel_count, Memory::Shared);
  listed_ = backend.allocate(lists * listed_shape_.sel_count, Memory::Shared);
  order_.reserve(rows);
  for (auto* runs : {&choosing_.own, &choosing_.choosers, &choosing_.shared, &choosing_.reused}) runs->reserve(rows);
}

void Pass::begin(View<const int32_t, 1> ids, std::span<const Segment> segments, const Taps& taps) {
  HUNCH_CHECK(int(segments.size()) <= limits_.max_segments);
  arena_.reset();
  ids_ = ids, taps_ = taps;
  segments_.assign(segments.begin(), segments.end());
  num_rows_ = 0;
  parts_.clear(), runs_.clear();
  for (const Segment& segment : segments_) {
    SparseCheck* check =
        segment.check && (segment.check->thins_channels() || segment.check->thins_experts()) ? segment.check : nullptr;
    if (parts_.empty() || check || parts_.back().check) parts_.push_back({num_rows_, 0, check});
    parts_.back().rows += segment.num_rows;
    HUNCH_CHECK(segment.num_rows > 0 && num_rows_ + segment.num_rows <= limits_.max_rows);
    for (int row = 0; row < segment.num_rows; ++row)
      positions_[num_rows_++] = int32_t(segment.first_position + offset_of(segment, row));
  }
  HUNCH_CHECK(ids.extent[0] == num_rows_);
  compressing_.clear();
  if (limits_.compressed)
    for (const Segment& segment : segments_) compressing_.push_back(compressing(segment));
}

// Rows that end in tokens of this pass are always made anew: what the last one made of them may have been rejected. Those of a
// tree are not made here, its nodes own them; the pass that follows makes what became final.
Pass::Compressing Pass::compressing(const Segment& segment) const {
  const Sequence& sequence = *segment.sequence;
  const int64_t pages = limits_.compressed->num_pages / limits_.max_segments;
  const int64_t known = std::min(sequence.compressed_len, segment.first_position);
  sequence.compressed_len = segment.first_position + (segment.parents.empty() ? segment.num_rows : 0);
  Compressing out{.first = shape_.nsa.rows_of(known), .last = shape_.nsa.rows_of(sequence.compressed_len)};
  HUNCH_CHECK(sequence.slot >= 0 && sequence.slot < limits_.max_segments && out.last <= pages * kPageLen);
  out.pages = View<const int32_t, 1>(compressed_pages_.data() + sequence.slot * pages, pages);
  return out;
}

PassInfo Pass::info_of(const Segment& segment) const {
  PassInfo info{.sequence = segment.sequence, .draft = segment.phase == Segment::Phase::Draft};
  info.prompt = segment.phase == Segment::Phase::Prefill;
  info.num_rows = info.prompt ? segment.selecting_rows : segment.num_rows;
  info.first_position = segment.first_position + segment.num_rows - info.num_rows;
  info.round_row = segment.round_row;
  return info;
}

// Drafts write here too: tentative rows that nobody trusts, overwritten in every layer by the verify pass that follows.
void Pass::store_own(int layer, const Segment& segment, int64_t first_row, View<const float, 3> k, View<const float, 3> v) {
  const auto rows_of = [&](const auto& x) { return x.slice(first_row, segment.num_rows); };
  const int64_t first_entry = first_stored(segment, segment.first_position);
  const KvRef own{&store_, segment.sequence->pages.view()};
  backend_.store_kv({.layer = layer, .k = rows_of(k), .v = rows_of(v), .kv = own, .first_entry = first_entry});
}

AttentionRun Pass::run_of(int layer, const Segment& segment, int64_t first_row, const Attend& args) {
  const KvRef own{&store_, segment.sequence->pages.view()};
  AttentionRun run{
      .first_row = first_row, .num_rows = segment.num_rows, .kv = own, .window = shape_.window_of(layer), .first = segment.first};
  HUNCH_CHECK(segment.first == 0 || !segment.policy);
  HUNCH_CHECK(!segment.check || (segment.phase != Segment::Phase::Prefill && segment.first == 0));
  int64_t first_entry = segment.first_position;
  const auto q = args.q.slice(first_row, segment.num_rows);
  const bool drafts = segment.policy && segment.phase == Segment::Phase::Draft;
  const bool thins = segment.check && segment.check->thins_attention();  // in place of a policy
  if (drafts || thins) {
    SparseCheck::Reading reading;
    if (thins) reading = segment.check->select(layer, q, own, segment.sequence->committed_len, segment.round_row);
    else
      reading.selection =
          segment.policy->select(layer, {.q = q, .scale = args.scale, .kv = own, .sinks = args.sinks}, info_of(segment));
    const Selection& selection = reading.selection;
    run.head_first = reading.head_first;
    if (selection.grain == Selection::Grain::Token) {
      HUNCH_CHECK(drafts || !segment.policy);  // what is learnt needs scores of all entries
      if (drafts && !thins) entries_offered_ += selection.tail_first, entries_selected_ += selection.prefix;
      first_entry = selection.entry_of(segment.first_position);
      if (selection.index.data) {
        run.index = selection.index, run.tail_first = selection.tail_first;
      } else {
        run.kv = selection.kv;
        backend_.store_kv({.layer = layer,
            .k = args.k.slice(first_row, segment.num_rows),
            .v = args.v.slice(first_row, segment.num_rows),
            .kv = selection.kv,
            .first_entry = first_stored(segment, first_entry)});
      }
    }
  }
  int32_t* last = last_.data() + first_row;
  for (int row = 0; row < segment.num_rows; ++row) last[row] = int32_t(first_entry + offset_of(segment, row));
  run.last = View<const int32_t, 1>(last, segment.num_rows);
  run.settled = first_entry;
  run.tree = {.parents = segment.parents, .first = segment.round_row, .first_entry = first_entry};
  return run;
}

// Policies speak of the rows that count (the last ones of a run), attention of all rows of the run.
void Pass::request_scores(int layer, const Segment& segment, const PassInfo& info, AttentionRun& run) {
  const ScoreRequest request = segment.policy->scores(layer, info);
  if (request.metric == ScoreMetric::None || run.window > 0) return;
  HUNCH_CHECK(request.metric == ScoreMetric::Logit || info.num_rows == run.num_rows);
  const View<uint8_t, 1> used(used_.data() + run.first_row, run.num_rows);
  const int64_t skipped = run.num_rows - info.num_rows;
  for (int64_t row = 0; row < run.num_rows; ++row) used(row) = row >= skipped && request.row_used(row - skipped);
  run.scores = {.metric = request.metric,
      .combine = request.combine,
      .row_used = used,
      .lse = request.lse,
      .prefix_len = info.first_position / request.block * request.block,
      .block = request.block,
      .out = request.out};
}

// The runs that choose for the segment: one row of each group. A device takes trees as a whole.
void Pass::share_choices(const Segment& segment, const NsaRun& run) {
  if (backend_.asynchronous() && !segment.parents.empty()) return choosing_.choosers.push_back(run);
  each_group(segment, order_, [&](auto group) {
    const int row = chooser_of(group, run.last);
    NsaRun one = run;
    one.first_row = run.first_row + row, one.num_rows = 1, one.last = run.last.slice(row, 1), one.tree.first = row;
    choosing_.choosers.push_back(one);
  });
}

// Every row's list out of that of its group's chooser.
void Pass::settle_shared(const Segment& segment, const NsaRun& run) {
  const auto chosen = chosen_.view<int32_t>(limits_.max_rows, shape_.kv_heads, shape_.nsa.sel_count);
  const auto listed = listed_.view<int32_t>(limits_.max_rows, shape_.kv_heads, listed_shape_.sel_count);
  each_group(segment, order_, [&](auto group) {
    const int64_t chooser = run.first_row + chooser_of(group, run.last);
    for (const int row : group)
      for (int head = 0; head < shape_.kv_heads; ++head)
        take_shared(shape_.nsa, run.last(row), &chosen(chooser, head, 0), &listed(run.first_row + row, head, 0));
  });
}

// Store K and V, compress, attend: no policy selects, the model does.
void Pass::attend_sparsely(int layer, const Attend& args) {
  HUNCH_CHECK(limits_.compressed);
  nsa_runs_.clear();
  for (auto* runs : {&choosing_.own, &choosing_.choosers, &choosing_.shared, &choosing_.reused}) runs->clear();
  int64_t first_row = 0;
  for (size_t i = 0; i < segments_.size(); ++i) {
    const Segment& segment = segments_[i];
    HUNCH_CHECK(!segment.policy && segment.phase != Segment::Phase::Draft && segment.first == 0);
    const KvRef kv{&store_, segment.sequence->pages.view()}, rows{limits_.compressed, compressing_[i].pages};
    store_own(layer, segment, first_row, args.k, args.v);
    backend_.compress_kv(
        {.layer = layer, .nsa = args.nsa, .kv = kv, .rows = rows, .first = compressing_[i].first, .last = compressing_[i].last});
    NsaRun run{.first_row = first_row, .num_rows = segment.num_rows, .kv = kv, .rows = rows};
    run.last = positions().slice(first_row, segment.num_rows);
    run.tree.parents = segment.parents, run.tree.first_entry = segment.first_position;
    nsa_runs_.push_back(run);
    first_row += segment.num_rows;
    const IndexSharing* sharing = segment.sharing;
    if (sharing && sharing->shares()) {
      if (!sharing->reuses(layer)) share_choices(segment, run);
      choosing_.shared.push_back(run);
    } else {
      (sharing && sharing->reuses(layer) ? choosing_.reused : choosing_.own).push_back(run);
    }
  }
  NsaAttentionArgs op{.layer = layer, .nsa = args.nsa, .scale = args.scale, .q = args.q, .gates = args.gates};
  const auto call = [&](const std::vector<NsaRun>& runs, View<int32_t, 3> chosen, bool given, View<float, 3> out) {
    op.runs = runs, op.chosen = chosen, op.given = given, op.out = out;
    if (!runs.empty()) backend_.nsa_attention(op);
  };
  // Lists of a layer stay for those behind it that reuse them.
  const auto chosen = chosen_.view<int32_t>(limits_.max_rows, shape_.kv_heads, shape_.nsa.sel_count);
  const bool kept = std::ranges::any_of(segments_, [](const Segment& s) { return s.sharing; });
  call(choosing_.own, kept ? chosen : View<int32_t, 3>{}, false, args.out);
  call(choosing_.reused, chosen, true, args.out);
  if (choosing_.shared.empty()) return;
  call(choosing_.choosers, chosen, false, {});
  if (!choosing_.choosers.empty()) (void)backend_.synchronize();  // a failure shows at the next step
  for (size_t i = 0; i < segments_.size(); ++i)
    if (const IndexSharing* sharing = segments_[i].sharing; sharing && sharing->shares() && !sharing->reuses(layer))
      settle_shared(segments_[i], nsa_runs_[i]);
  op.nsa.shape = &listed_shape_;
  call(choosing_.shared, listed_.view<int32_t>(limits_.max_rows, shape_.kv_heads, listed_shape_.sel_count), true, args.out);
}

void Pass::attend(int layer, const Attend& args) {
  if (args.nsa.shape) return attend_sparsely(layer, args);
  const bool again = !runs_.empty();
  runs_.resize(segments_.size());
  int64_t first_row = 0;
  for (size_t i = 0; i < segments_.size(); ++i) {
    const Segment& segment = segments_[i];
    store_own(layer, segment, first_row, args.k, args.v);
    if (again && !segment.policy && !segment.check) runs_[i].window = shape_.window_of(layer);
    else runs_[i] = run_of(layer, segment, first_row, args);
    first_row += segment.num_rows;
  }
  // Policies copy what their scores need: calls of one kind in a row, which backends take together.
  for (size_t i = 0; i < segments_.size(); ++i) {
    const Segment& segment = segments_[i];
    if (!segment.policy) continue;
    const PassInfo info = info_of(segment);
    if (!info.draft && info.num_rows > 0) request_scores(layer, segment, info, runs_[i]);
  }
  auto lse = lse_.view<float>(num_rows_, shape_.heads);
  backend_.attention(
      {.layer = layer, .scale = args.scale, .q = args.q, .out = args.out, .lse = lse, .sinks = args.sinks, .runs = runs_});

  for (size_t i = 0; i < segments_.size(); ++i) {
    const Segment& segment = segments_[i];
    if (!segment.policy) continue;
    const PassInfo info = info_of(segment);
    if (info.num_rows == 0) continue;
    const auto start = Clock::now();
    const AttentionRun& run = runs_[i];
    const int64_t counting = run.first_row + run.num_rows - info.num_rows;
    segment.policy->learn(layer, info,
        {.q = args.q.slice(counting, info.num_rows),
            .lse = View<const float, 2>(lse).slice(counting, info.num_rows),
            .scores = run.scores.out,
            .scale = args.scale,
            .kv = {&store_, segment.sequence->pages.view()}});
    if (!info.draft) select_ms_ += ms_since(start);
  }
}

void Pass::store(int layer, View<const float, 3> k, View<const float, 3> v) {
  int64_t first_row = 0;
  for (const Segment& segment : segments_) {
    HUNCH_CHECK((!segment.policy || info_of(segment).num_rows == 0) && segment.parents.empty());
    store_own(layer, segment, first_row, k, v);
    first_row += segment.num_rows;
  }
}

void Pass::layer_output(int layer, View<const float, 2> x) {
  layers_run_.fetch_add(1, std::memory_order_relaxed);
  for (size_t i = 0; i < taps_.layers.size(); ++i) {
    if (taps_.layers[i] != layer) continue;
    View<float, 2> to(taps_.out.data + int64_t(i) * x.extent[1], x.extent[0], x.extent[1]);
    to.stride[0] = taps_.out.stride[0];
    backend_.copy_rows({.from = x, .to = to});
  }
}

double Pass::take_select_ms() { return std::exchange(select_ms_, 0.0); }

}
