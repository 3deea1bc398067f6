// What feeds attention on the tensor cores (attention_kernel.cuh): the layout of shared memory, the tiles of an item, the queue
// of items, and the producers, which stream pages of K and V (a TMA box each; selected rows as lines, or by 16-byte copies)
// through two rings. Stores of 8 bits: attention_codes.cuh.
#pragma once

#include "backend/cuda/attention_args.h"
#include "backend/cuda/attention_ptx.cuh"
#include "backend/cuda/ptx.h"

namespace hunch {

constexpr float kLog2E = 1.44269504088896340736f, kLn2 = 0.69314718055994530942f;
constexpr int kAttentionThreads = 384;
constexpr int kRingThreads = 64;  // producers of a ring: two warps that take turns
constexpr int kQueueSlots = 4;    // items that producers may be ahead of consumers

// kLines: an entry's K and V lie in a line, as in the cache, and come line by line; for a selection and few rows. Lines are 16
// bytes apart, so that ldmatrix meets in no bank. kFolds: consumers keep what splits come to here, in place of a stage of each
// ring. kCoded: tiles come as codes and stand there as fp16 when they have been widened; codes take the place of a stage.
// kColumns: packed rows stand in columns, at most 32, in lines 16. kHalves: keys and values of a stage come and go apart, so
// that two stages serve a consumer as well as three.
template <int D, bool kLines, bool kFolds = false, bool kCoded = false, bool kColumns = kLines, bool kHalves = false>
struct AttentionShared {
  static constexpr int kHeadDim = D;
  static constexpr bool kOfLines = kLines, kOfCodes = kCoded, kApart = kHalves;
  static constexpr int kStages = (D == 128 ? 3 : 6) - int(kFolds) - int(kCoded);  // of a ring
  static constexpr int kFoldBytes = kFolds ? kTileRows * D * 4 : 0;               // of a consumer
  static constexpr int kLineBytes = D * 2 * 2, kPitch = kLineBytes + (kLines ? 16 : 0);
  static constexpr int kStageBytes = kPageLen * kPitch;
  static constexpr int kPlaces = kLines ? 16 : kColumns ? 32 : kTileRows;  // of packed rows
  static constexpr int kQueryPart = kPlaces * 128;                         // 64 dimensions of the queries
  static constexpr int kWeightBytes = kColumns ? kPlaces * 128 : 0;        // of a tile; a consumer has two
  static constexpr int kQueryBytes = D / 64 * kQueryPart;
  static constexpr int kCodeBytes = kCoded ? kPageLen * D * 2 : 0;  // of a tile; each producer warp has one
  static constexpr int kQueries = 0, kRings = 2 * kQueryBytes, kCodes = kRings + 2 * kStages * kStageBytes;
  static constexpr int kWeights = kCodes + 4 * kCodeBytes, kRows = kWeights + 4 * kWeightBytes;
  static constexpr int kRowBytes = 2 * 4 * kTileRows * 4;  // [consumer][4][64] what is known of rows, or scores
  static constexpr int kFold = kRows + kRowBytes;
  static constexpr int kBad = kFold + 2 * kFoldBytes;        // [two tiles][consumer][warp] entries of V that are not finite
  static constexpr int kBarriers = kBad + 2 * 2 * 4 * 4;     // [ring][full, empty][stage]
  static constexpr int kBarrierBytes = 2 * 2 * kStages * 8;  // of stages, or of their keys; then of their values
  static constexpr int kQueues = kBarriers + (kApart ? 2 : 1) * kBarrierBytes;  // [queue][full, empty][slot]
  static constexpr int kTaken = kQueues + 2 * 2 * kQueueSlots * 8;              // [queue][slot] items
  static constexpr int kArrived = kTaken + 2 * kQueueSlots * 4;                 // [producer warp][half of its tile of codes]
  static constexpr int kBytes = kArrived + (kCoded ? 4 * 2 * 8 : 0);
};

// The state of a row over a set of entries and how two of them become one; the same code in attention and combine kernels.
struct MergeWeights {
  float a, b, top;
};
HUNCH_DEVICE MergeWeights merge_weights(float top_a, float top_b) {
  const float top = fmaxf(top_a, top_b), base = top == -INFINITY ? 0.0f : top;
  return {exp2_fast(top_a - base), exp2_fast(top_b - base), top};
}
HUNCH_DEVICE float merge(const MergeWeights& w, float a, float b) { return fmaf(a, w.a, b * w.b); }

// A value that all lanes have, so that the compiler knows: branches on it are the warp's, and shuffles behind them are plain.
HUNCH_DEVICE int uniform(int x) { return __shfl_sync(~0u, x, 0); }

// The tiles of keys of splits of an item, in the order of folding; no split is without. leaf -1: entries in order.
class Tiles {
 public:
  HUNCH_DEVICE Tiles(const AttentionItemDevice& item, const LeafDevice* leaves, int first_split, int num_splits)
      : item_(item), leaves_(leaves), splits_end_(first_split + num_splits) {
    begin_split(first_split);
  }
  HUNCH_DEVICE Tiles(const AttentionItemDevice& item, const LeafDevice* leaves)
      : Tiles(item, leaves, item.first_split, item.num_splits) {}
  HUNCH_DEVICE bool next() {  // false: that was the last one
    while (true) {
      if (next_block_ < last_) {
        block = next_block_++;
        return true;
      }
      if (next_leaf_ < item_.leaf_end) {
        leaf = next_leaf_++;
        next_block_ = max(item_.leaf_block, begin_), last_ = min(leaves_[leaf].end_block, begin_ + item_.split_blocks);
      } else if (split + 1 < splits_end_) {
        begin_split(split + 1);
      } else {
        return false;
      }
    }
  }
  // Tiles of this split from this one on that follow each other in order and lie before an entry.
  HUNCH_DEVICE int in_order(int end_entry) const { return leaf < 0 ? min(last_, end_entry / kPageLen) - block : 0; }
  HUNCH_DEVICE void next_in_order() { block = next_block_++; }
  int split = 0, block = 0, leaf = -1;

 private:
  HUNCH_DEVICE void begin_split(int which) {
    split = which, leaf = -1, begin_ = which * item_.split_blocks;
    next_block_ = max(item_.block_begin, begin_), last_ = min(item_.block_end, begin_ + item_.split_blocks);
    next_leaf_ = begin_ + item_.split_blocks > item_.leaf_block ? item_.leaf_begin : item_.leaf_end;
  }
  const AttentionItemDevice& item_;
  const LeafDevice* leaves_;
  int splits_end_, begin_ = 0, next_block_ = 0, last_ = 0, next_leaf_ = 0;
};

// The entry of the store that place `place` of a run is. leaf -1: none. (Not a pointer, which ptxas 13.0 seems to test too
// early: docs/kernels/attention-gpu.md.)
HUNCH_DEVICE int stored_entry(const AttentionRunDevice& run, int leaf, int kv_head, int place, int end) {
  place = min(place, end - 1);
  if (leaf >= 0 && place >= run.tree_entry) {
    const LeafDevice& of = run.leaves[leaf];
    place = run.tree_entry + run.paths[of.path + min(place - run.tree_entry, of.depth)];
  }
  if (!run.index) return place;
  return place < run.count ? __ldcg(run.index + kv_head * run.index_stride + place) : run.tail_first + (place - run.count);
}

// The items of a worker as its warps see them, one after the other: first a stretch of its own, then what is left, counted off
// by a lane of its first producer warp and handed round through shared memory.
class ItemQueue {
 public:
  template <class Shared, bool kPaired>
  HUNCH_DEVICE static ItemQueue of(const AttentionDevice& args, uint32_t shared, char* memory, int ring, bool first) {
    const int queue = kPaired ? 0 : ring, worker = int(blockIdx.x) + queue * int(gridDim.x);
    ItemQueue q(args);
    q.full_ = shared + Shared::kQueues + uint32_t(queue * 2 * kQueueSlots * 8);
    q.items_ = reinterpret_cast<volatile int*>(memory + Shared::kTaken) + queue * kQueueSlots;
    q.hands_round_ = first && (!kPaired || ring == 0) && threadIdx.x % 32 == 0;
    q.item_ = args.worker_items[worker], q.own_end_ = args.worker_items[worker + 1];
    if (q.item_ == q.own_end_) q.take();
    return q;
  }
  HUNCH_DEVICE int item() const { return item_; }  // at least num_items: no more
  HUNCH_DEVICE void advance() {
    if (++item_ >= own_end_) take();
  }

 private:
  HUNCH_DEVICE explicit ItemQueue(const AttentionDevice& args) : args_(args) {}
  HUNCH_DEVICE void take() {
    own_end_ = 0;
    if (hands_round_) {
      wait_for_previous();  // the launch before counts here too
      const int taken = args_.first_shared + int(atomicAdd(args_.taken, 1u) - args_.taken_before);
      barrier_poll(full_ + uint32_t((kQueueSlots + slot_) * 8), phase_ ^ 1);
      items_[slot_] = taken;
      barrier_arrive(full_ + uint32_t(slot_ * 8));
    }
    __syncwarp();
    barrier_poll(full_ + uint32_t(slot_ * 8), phase_);
    item_ = items_[slot_];
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(full_ + uint32_t((kQueueSlots + slot_) * 8));
    if (++slot_ == kQueueSlots) slot_ = 0, phase_ ^= 1;
  }
  const AttentionDevice& args_;
  uint32_t full_ = 0, phase_ = 0;
  volatile int* items_ = nullptr;
  int item_ = 0, own_end_ = 0, slot_ = 0;
  bool hands_round_ = false;
};

// What a producer warp brings: every other tile of its ring. Its stage is `stage` of the ring, empty in the phase before `phase`.
template <class Shared, bool kPaired, class BeginItem, class Bring>
HUNCH_DEVICE void for_own_tiles(
    const AttentionDevice& args, uint32_t shared, char* memory, const BeginItem& begin_item, const Bring& bring) {
  const int ring = int(threadIdx.x) / kRingThreads, warp = int(threadIdx.x) / 32 % 2;
  int stage = 0, tiles = 0;
  constexpr int rings = kPaired ? 2 : 1;
  const int my_ring = kPaired ? ring : 0;
  uint32_t phase = 0;
  bool waited = false;
  ItemQueue queue = ItemQueue::of<Shared, kPaired>(args, shared, memory, ring, warp == 0);
  for (; queue.item() < args.num_items; queue.advance()) {
    const AttentionItemDevice& item = args.items[queue.item()];
    const AttentionRunDevice& run = args.runs[item.run];
    begin_item(run);
    const int end_entry = item.end_entry, kv_head = item.kv_head;
    const int32_t* pages = run.pages;
    for (Tiles keys(item, run.leaves); keys.next();) {
      const int tile = tiles++, block = keys.block, leaf = keys.leaf;
      if (tile % rings != my_ring) continue;
      const int at_stage = stage;
      const uint32_t at_phase = phase;
      if (++stage == Shared::kStages) stage = 0, phase ^= 1;
      if (tile / rings % 2 != warp) continue;
      if (!waited && (leaf >= 0 || (block + 1) * kPageLen > run.settled)) {
        wait_for_previous();
        waited = true;
      }
      bring(run, pages, kv_head, end_entry, block, leaf, at_stage, at_phase);
    }
  }
}

// Where rows l and l + 32 of a tile lie, for lane l: page and entry in it, as one number.
HUNCH_DEVICE void look_up_rows(
    int (&row)[2], const AttentionRunDevice& run, const int32_t* pages, int kv_head, int end_entry, int block, int leaf) {
  const int places_end = leaf < 0 ? end_entry : run.tree_entry + run.leaves[leaf].depth + 1;
  const int place = block * kPageLen + int(threadIdx.x) % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) row[h] = stored_entry(run, leaf, kv_head, place + h * 32, places_end);
#pragma unroll
  for (int h = 0; h < 2; ++h) row[h] = pages[row[h] / kPageLen] * kPageLen + row[h] % kPageLen;
}

template <class Shared, bool kPaired>
HUNCH_DEVICE void produce(const AttentionDevice& args, uint32_t shared, char* memory) {
  constexpr int D = Shared::kHeadDim;
  const int ring = int(threadIdx.x) / kRingThreads, lane = int(threadIdx.x) % 32;
  const uint32_t stages = shared + Shared::kRings + uint32_t(ring * Shared::kStages * Shared::kStageBytes);
  const uint32_t full = shared + Shared::kBarriers + uint32_t(ring * 2 * Shared::kStages * 8), empty = full + Shared::kStages * 8;
  const uint64_t policy = args.reread ? policy_normal() : policy_read_once();
  const bool alone = Shared::kApart || args.keys_only;  // keys, and values
  const auto begin_item = [&](const AttentionRunDevice& run) {
    if (!run.index && lane == 0) forget_map(run.plane.maps + int(alone));
  };
  const auto bring = [&](const AttentionRunDevice& run, const int32_t* pages, int kv_head, int end_entry, int block, int leaf,
                         int stage, uint32_t phase) {
    const uint32_t to = stages + uint32_t(stage * Shared::kStageBytes), ready = full + uint32_t(stage * 8);
    const int halves = Shared::kApart && !args.keys_only ? 2 : 1;
    if (!run.index && leaf < 0) {
      const int page = pages[block];
      for (int half = 0; half < halves; ++half) {
        const uint32_t barrier = uint32_t(half * Shared::kBarrierBytes);
        barrier_poll(empty + uint32_t(stage * 8) + barrier, phase ^ 1);
        if (lane == 0) {
          barrier_arrive_and_expect(ready + barrier, alone ? Shared::kStageBytes / 2 : Shared::kStageBytes);
          copy_box(to + uint32_t(half * Shared::kStageBytes / 2), run.plane.maps + int(alone),
              run.plane.first_row + kv_head * run.plane.head_rows + page * kPageLen, half * (D / 64), ready + barrier, policy);
        } else {
          barrier_arrive(ready + barrier);
        }
      }
      return;
    }
    // Lane l looks up rows l and l + 32; then the warp copies them row by row.
    int row[2];
    look_up_rows(row, run, pages, kv_head, end_entry, block, leaf);
    const std::byte* head = run.plane.keys + kv_head * run.plane.head_bytes;
    if constexpr (Shared::kOfLines) {
      barrier_poll(empty + uint32_t(stage * 8), phase ^ 1);
      if (lane == 0) barrier_arrive_and_expect(ready, kPageLen * Shared::kLineBytes);
      __syncwarp();
#pragma unroll
      for (int h = 0; h < 2; ++h)
        copy_to_shared(to + uint32_t((h * 32 + lane) * Shared::kPitch), head + int64_t(row[h]) * Shared::kLineBytes,
            Shared::kLineBytes, ready, policy);
      if (lane != 0) barrier_arrive(ready);
      return;
    }
    // 16 bytes each of a row, of K and V or, apart, of either.
    constexpr int kChunks = D / (Shared::kApart ? 8 : 4), kRowsAtOnce = 32 / kChunks;
    for (int half = 0; half < halves; ++half) {
      const int chunk = lane % kChunks + half * kChunks;
      const bool mine = Shared::kApart || !args.keys_only || chunk < kChunks / 2;
      const uint32_t part = to + uint32_t(chunk / 8 * 8192), barrier = uint32_t(half * Shared::kBarrierBytes);
      barrier_poll(empty + uint32_t(stage * 8) + barrier, phase ^ 1);
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll 8
        for (int r = 0; r < 32; r += kRowsAtOnce) {
          const int at = r + lane / kChunks, from = __shfl_sync(~0u, row[h], at), in_tile = h * 32 + at;
          if (mine)
            copy_16(
                part + uint32_t(in_tile * 128 + ((chunk % 8) ^ (in_tile % 8)) * 16), head + chunk * 16 + int64_t(from) * (D * 4));
        }
      barrier_arrive_copies(ready + barrier);
    }
  };
  for_own_tiles<Shared, kPaired>(args, shared, memory, begin_item, bring);
}

}
