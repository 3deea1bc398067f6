// What a block of a kernel of products works on, and when: its units of work, stage by stage, and how fast it asks for them.
#pragma once

#include "backend/cuda/products_args.cuh"

namespace hunch {

// Walks over the records of a block's units, in order, a stage at a time. kBlocks: of a cluster, which shares a unit:
// neighbouring groups, or with many rows (kWhole) two row tiles of one group or of two.
template <int kBlocks, bool kWhole = false>
struct Cursor {
  const ProductsOnDevice& a;
  const int stage_records, splits_shift;                                           // splits are 1, 2 or 4
  int group_tiles, unit, group = 0, split = 0, row_tile = 0, record = 0, end = 0;  // end: of the run

  __device__ Cursor(const ProductsOnDevice& args, int tiles)
      : a(args),
        stage_records(args.stage_records),
        splits_shift(args.splits >> 1),
        group_tiles(tiles),
        unit(int(blockIdx.x) / kBlocks) {
    open();
  }
  __device__ bool valid() const { return unit < a.units; }
  __device__ void open() {
    if (!valid()) return;
    const int rank = int(blockIdx.x) % kBlocks;
    if constexpr (kWhole) {
      // Bands of row tiles, so that blocks running together share both weights and activations.
      int i = unit;
      split = 0;
      if (a.cut) {
        split = i & (a.splits - 1);
        i >>= splits_shift;
      }
      const int in_band = a.groups * a.row_band, band = i / in_band, left = a.row_tiles - band * a.row_band;
      const int width = left < a.row_band ? left : a.row_band;
      i -= band * in_band;
      row_tile = 2 * (band * a.row_band + i % width) + rank;
      group = i / width;
    } else {
      split = unit & (a.splits - 1);
      group = (unit >> splits_shift) * kBlocks + rank;
    }
    open_run();
  }
  __device__ void open_run() {
    record = a.num_records * split >> splits_shift;
    end = a.num_records * (split + 1) >> splits_shift;
  }
  __device__ int count() const { return end - record < stage_records ? end - record : stage_records; }
  // True if another unit begins.
  __device__ bool next() {
    record += count();
    if (record < end) return false;
    if (kWhole && !a.cut && split + 1 < a.splits) {
      ++split;
      open_run();
      return false;
    }
    next_unit();
    return true;
  }
  __device__ void next_unit() {
    unit += int(gridDim.x) / kBlocks;
    open();
  }
  __device__ int tiles() const {  // of this group
    const int left = a.num_tiles - group * group_tiles;
    return left >= group_tiles ? group_tiles : left > 0 ? left : 0;
  }
};

// The first stages are asked for no faster than the device's memory gives them: what an SM has asked for comes in order, and
// activations would wait for all of it.
struct Pace {
  const uint32_t begin = now(), cycles;  // of a stage
  const int burst;                       // stages at once

  __device__ explicit Pace(const ProductsOnDevice& a) : cycles(uint32_t(a.stage_cycles)), burst(a.burst) {}
  __device__ static uint32_t now() {
    uint32_t clock;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(clock));
    return clock;
  }
  // `taken`: the barrier of the first stage, once it is empty again: the activations are there, and so is the end of this.
  __device__ void wait(int step, uint32_t taken) const {
    if (step < burst) return;
    while (now() - begin < uint32_t(step - burst + 1) * cycles && !barrier_done(taken, 0)) {}
  }
};

struct Ring {
  int stage = 0;
  uint32_t phase = 0;
  __device__ void next(int stages) {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
};

}
