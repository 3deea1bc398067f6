// What the two forms of a consumer of attention on the tensor cores share: the walk over its items and tiles, queries in shared
// memory, the values that must not be read. attention_columns.cuh: packed rows in the columns of the instruction, for few of
// them; attention_rows.cuh: in its rows, for many. A row's bits are the same in both.
#pragma once

#include "backend/cuda/attention_codes.cuh"
#include "backend/cuda/attention_wgmma.cuh"

namespace hunch {

// A row's weights stand relative to a reference (base 2), which follows the greatest logit only when a weight, rounded, is above
// kSlack. By a row's own logits alone: its bits do not depend on who else is there.
constexpr float kSlack = 256, kNothingRead = -1e30f;

// A tile of keys on its way through a consumer.
struct TileInFlight {
  int split, entry, leaf;
  uint32_t full, phase, keys;  // its stage: barrier and memory
};

// Self: has begin_rows(run, item) for a new tile of rows, attend(run, item) and look_at_keys(run, item), scores alone.
template <class Self, int D, class T, bool kPaired, bool kLines, bool kFolds, bool kColumns>
class AttentionConsumer {
 public:
  using Shared = AttentionShared<D, kLines, kFolds, std::is_same_v<T, Coded>, kColumns, kFolds && !kPaired>;
  static constexpr int kStages = Shared::kStages, kParts = D / 64;

  HUNCH_DEVICE AttentionConsumer(const AttentionDevice& args, uint32_t shared, char* memory)
      : args_(args), shared_(shared), memory_(memory) {
    consumer_ = uniform(int(threadIdx.x) / 128 - 1), t_ = int(threadIdx.x) % 128, lane_ = t_ % 32, warp_ = uniform(t_ / 32);
    keys_only_ = uniform(args.keys_only) != 0, shift_ = uniform(args.group_shift), scale_ = args.scale_log2;
  }

  HUNCH_DEVICE void run() {
    ring_ = kPaired ? 0 : consumer_;
    int last_run = -1, last_head = -1, last_group = -1;
    ItemQueue queue = ItemQueue::of<Shared, kPaired>(args_, shared_, memory_, consumer_, false);
    for (; queue.item() < args_.num_items; queue.advance()) {
      const AttentionItemDevice& item = args_.items[uniform(queue.item())];
      const AttentionRunDevice& run = args_.runs[item.run];
      rows_in_tile_ = uniform(kPaired && consumer_ ? item.rows[1] : item.rows[0]);
      tile_ = rows_in_tile_ == 0 ? 0 : kPaired ? item.mgroup * 2 + consumer_ : item.mgroup;
      clean_begin_ = item.clean_begin, clean_end_ = item.clean_end;
      if (Self::kScores) sink_ = rows_in_tile_ == 0 ? ScoreSink::None : ScoreSink(uniform(int(run.sink)));
      if (Self::kScores)
        scored_end_ = sink_ == ScoreSink::None || item.part > 1 ? 0 : run.prefix_len, scored_leaf_ = item.leaf_begin;
      gathered_ = run.index != nullptr;
      weight_ = uniform(run.weight) != 0, sum_ = uniform(run.sum) != 0, mean_ = run.mean;
      if (sink_ != ScoreSink::Rows)
        scores_ = run.scores +
            (sink_ == ScoreSink::Groups ? tile_ * run.plane.kv_heads + item.kv_head : item.kv_head) * run.scores_stride;
      if (item.run != last_run || item.kv_head != last_head || item.mgroup != last_group) {
        self().begin_rows(run, item);
        last_run = item.run, last_head = item.kv_head, last_group = item.mgroup;
      }
      if (!Self::kScores || !keys_only_) self().attend(run, item);
      else self().look_at_keys(run, item);
    }
    take_turn();
  }

 protected:
  // Before anything is read that the kernels in front make, or written.
  HUNCH_DEVICE void take_turn() {
    if (has_turn_) return;
    wait_for_previous();
    let_next_start();
    has_turn_ = true;
  }
  HUNCH_DEVICE Self& self() { return static_cast<Self&>(*this); }
  HUNCH_DEVICE void sync() const { named_barrier(1 + consumer_, 128); }
  HUNCH_DEVICE int head_of(int in_tile) const { return (tile_ * kTileRows + in_tile) & ((1 << shift_) - 1); }
  HUNCH_DEVICE int row_of(const AttentionRunDevice& run, int in_tile) const {  // the run's
    const int listed = (tile_ * kTileRows + in_tile) >> shift_;
    return run.rows ? run.rows[listed] : listed;
  }
  using Pair = std::conditional_t<std::is_same_v<T, __nv_bfloat16>, __nv_bfloat162, __half2>;
  HUNCH_DEVICE static uint32_t pack(float a, float b) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
      return *reinterpret_cast<const uint32_t*>(&both);
    } else {
      const __half2 both = __floats2half2_rn(a, b);
      return *reinterpret_cast<const uint32_t*>(&both);
    }
  }

  // Whether a row whose greatest weight, so far as references go, is this one needs another reference.
  HUNCH_DEVICE static bool leaves_slack(float weight) {
    const uint32_t rounded = pack(weight, weight);
    return __low2float(*reinterpret_cast<const Pair*>(&rounded)) > kSlack;
  }
  template <int kCount>
  HUNCH_DEVICE static bool any_leaves_slack(const uint32_t (&rounded)[kCount]) {  // of pairs of weights
    Pair most = *reinterpret_cast<const Pair*>(&rounded[0]);
#pragma unroll
    for (int i = 1; i < kCount; ++i) most = __hmax2(most, *reinterpret_cast<const Pair*>(&rounded[i]));
    return fmaxf(__low2float(most), __high2float(most)) > kSlack;
  }

  // Queries of the tile, rounded, in the swizzle, of kPlaces rows of the operand; zeros where there is no row. All earlier
  // products are done, and nobody looks at what `meanwhile` writes before this ends.
  template <int kPlaces, class RowOfPlace, class Meanwhile>
  HUNCH_DEVICE void load_queries(
      const AttentionRunDevice& run, const AttentionItemDevice& item, RowOfPlace row_of_place, Meanwhile meanwhile) {
    constexpr int kChunks = D / 8, kEach = (kPlaces * kChunks + 127) / 128;  // 16 bytes of the tile each
    float4 x[kEach][2];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {  // all loads first, whatever they are of: one wait for memory
      const int chunk = (i * 128 + t_) % kChunks, in_tile = row_of_place((i * 128 + t_) / kChunks), head = head_of(in_tile);
      const int row = run.first_row + row_of(run, min(in_tile, max(rows_in_tile_, 1) - 1)), of_run = item.kv_head * args_.group;
      const auto* from = reinterpret_cast<const float4*>(
          args_.q + row * args_.q_row + (of_run + min(head, args_.group - 1)) * args_.q_head + chunk * 8);
      const bool stands = in_tile < rows_in_tile_ && head < args_.group;
      x[i][0] = from[0], x[i][1] = from[1];
      if (!stands) x[i][0] = x[i][1] = make_float4(0, 0, 0, 0);
    }
    sync();
    char* to = memory_ + Shared::kQueries + consumer_ * Shared::kQueryBytes;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int place = (i * 128 + t_) / kChunks, chunk = (i * 128 + t_) % kChunks;
      const float4 a = x[i][0], b = x[i][1];
      if (place < kPlaces)
        *reinterpret_cast<uint4*>(to + chunk / 8 * Shared::kQueryPart + place * 128 + ((chunk % 8) ^ (place % 8)) * 16) =
            make_uint4(pack(a.x, a.y), pack(a.z, a.w), pack(b.x, b.y), pack(b.z, b.w));
    }
    meanwhile();
    show_to_tensor_cores();
    sync();
  }
  HUNCH_DEVICE uint32_t queries() const { return shared_ + Shared::kQueries + uint32_t(consumer_ * Shared::kQueryBytes); }

  // The tile's stage; the ring goes on.
  HUNCH_DEVICE TileInFlight next_stage(const Tiles& tiles) {
    TileInFlight tile;
    tile.split = tiles.split, tile.entry = tiles.block * kPageLen, tile.leaf = tiles.leaf;
    tile.full = shared_ + Shared::kBarriers + uint32_t((ring_ * 2 * kStages + stage_) * 8);
    tile.keys = uint32_t(uniform(int(shared_ + Shared::kRings + uint32_t((ring_ * kStages + stage_) * Shared::kStageBytes))));
    tile.phase = phase_;
    if (kPaired) ring_ ^= 1;
    if (!kPaired || ring_ == 0)
      if (++stage_ == kStages) stage_ = 0, phase_ ^= 1;
    return tile;
  }
  HUNCH_DEVICE void await(const TileInFlight& tile) const { await(tile, 0); }
  HUNCH_DEVICE void leave(const TileInFlight& tile) const { leave(tile, 0); }  // the stage to the producers
  // Where both come apart the tile's values; await() is for its keys.
  HUNCH_DEVICE void await_values(const TileInFlight& tile) const {
    if (Shared::kApart) await(tile, Shared::kBarrierBytes);
  }
  HUNCH_DEVICE void leave_keys(const TileInFlight& tile) const {
    if (Shared::kApart) leave(tile, 0);
  }
  HUNCH_DEVICE void leave_values(const TileInFlight& tile) const { leave(tile, Shared::kApart ? Shared::kBarrierBytes : 0); }
  HUNCH_DEVICE void await(const TileInFlight& tile, int barrier) const {
    barrier_poll(tile.full + uint32_t(barrier), tile.phase);
    if (!kLines && (gathered_ || tile.leaf >= 0)) show_to_tensor_cores();
  }
  HUNCH_DEVICE void leave(const TileInFlight& tile, int barrier) const {
    __syncwarp();
    if (lane_ == 0) barrier_arrive(tile.full + uint32_t(kStages * 8 + barrier));
  }
  HUNCH_DEVICE bool is_scored(const TileInFlight& tile) const {
    return __any_sync(~0u, tile.entry < scored_end_ && (tile.leaf < 0 || tile.leaf == scored_leaf_));
  }
  // Few tiles are not: scores want the logits as they are, the softmax without what is not read.
  HUNCH_DEVICE bool is_clean(const TileInFlight& tile) const {
    return __all_sync(~0u, tile.leaf < 0 && tile.entry >= clean_begin_ && tile.entry + kPageLen <= clean_end_);
  }
  // From this one on, in order: tiles that every row reads, of one split, with scores by weights if any.
  HUNCH_DEVICE int plain_tiles(const Tiles& tiles, const TileInFlight& tile) const {
    if (Self::kScores && sink_ != ScoreSink::None && !weight_) return 0;
    return uniform(tile.entry >= clean_begin_ ? tiles.in_order(clean_end_) : 0);
  }

  // V of entries that some row does not read may hold anything, and nothing times NaN is NaN: rows of V that are not finite are
  // zeroed, and remembered for the rows that do read them.
  HUNCH_DEVICE bool clean_values(uint32_t keys) {
    // Two threads an entry, half a row of V each.
    char* at = memory_ + (keys - shared_) + (kLines ? t_ / 2 * Shared::kPitch + D * 2 : Shared::kStageBytes / 2 + t_ / 2 * 128);
    const auto piece = [&](int i) {
      const int where = kLines ? (t_ % 2 * kParts * 4 + i) * 16 : i / 4 * 8192 + (t_ % 2 * 4 + i % 4) * 16;
      return reinterpret_cast<uint4*>(at + where);
    };
    constexpr uint32_t kExponent = std::is_same_v<T, __nv_bfloat16> ? 0x7f80u : 0x7c00u;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < kParts * 4; ++i) {
      const uint4 x = *piece(i);
      for (uint32_t word : {x.x, x.y, x.z, x.w})
        finite = finite && (word & kExponent) != kExponent && (word >> 16 & kExponent) != kExponent;
    }
    finite = __shfl_xor_sync(~0u, int(finite), 1) && finite;
    const uint32_t entries = __ballot_sync(~0u, !finite);  // two lanes an entry
    auto* found = reinterpret_cast<uint32_t*>(memory_ + Shared::kBad) + (odd_ * 2 + consumer_) * 4;
    odd_ ^= 1;
    if (lane_ == 0) found[warp_] = entries;
    if (kPaired) named_barrier(3, 256);  // both consumers have looked
    if (!finite)
      for (int i = 0; i < kParts * 4; ++i) *piece(i) = make_uint4(0, 0, 0, 0);
    show_to_tensor_cores();
    if (kPaired) named_barrier(3, 256);
    else sync();
    found_ = found;
    return found[0] | found[1] | found[2] | found[3];
  }

  // Whether a row with this newest entry and this path reads an entry of a tile.
  HUNCH_DEVICE static bool reads(const AttentionRunDevice& run, int newest, int leaf_of_row, int entry, int leaf_of_tile) {
    const int oldest = max(run.first, run.window ? newest + 1 - run.window : 0);
    return entry >= oldest && entry <= newest && (leaf_of_tile < 0 || leaf_of_tile == leaf_of_row);
  }
  // Whether the item's partial of a row is its own to store: others have the rows on other paths.
  HUNCH_DEVICE static bool stores(const AttentionItemDevice& item, int leaf_of_row) {
    return item.part == 0 || (leaf_of_row >= item.leaf_begin && leaf_of_row < item.leaf_end);
  }
  HUNCH_DEVICE bool is_bad(int e) const { return found_[e / 16] >> (e % 16 * 2) & 1; }
  HUNCH_DEVICE float combined(float a, float b) const {
    const float added = a + b, greatest = fmaxf(a, b);
    return sum_ ? added : greatest;
  }

  const AttentionDevice& args_;
  const uint32_t shared_;
  char* memory_;
  int consumer_, t_, lane_, warp_;
  int ring_ = 0, stage_ = 0, odd_ = 0, shift_;
  bool keys_only_, has_turn_ = false;
  float scale_;
  ScoreSink sink_ = ScoreSink::None;
  int tile_ = 0, rows_in_tile_ = 0, clean_begin_ = 0, clean_end_ = 0, scored_end_ = 0, scored_leaf_ = 0;  // of the item
  bool gathered_ = false, weight_ = false, sum_ = false;
  float mean_ = 0;
  float* scores_ = nullptr;           // of the set or plane
  uint32_t used_ = 0, row_used_ = 0;  // by scores, a bit each of the thread's columns; the second of padding heads too
  const uint32_t* found_ = nullptr;   // entries of V that are not finite, two bits each
  uint32_t phase_ = 0;
};

}
