// Natural log-probabilities: contract in backend/ops/log_probs.h. A cluster of eight blocks holds one row; the best ids come in
// rounds of up to 1,024: radix selection of those after the last one listed, sorted by block 0.
#include "backend/cuda/log_probs.h"

#include "backend/cuda/ptx.h"
#include "backend/cuda/row_slice.cuh"

namespace hunch {
namespace {

struct LogProbsDevice {
  const float* logits;
  const int32_t* ids;  // null: not wanted
  float* values;
  int32_t* top_ids;
  float* top_values;
  int64_t logits_stride, ids_stride, values_stride, top_ids_stride, top_values_stride;
  int vocab, count;
};
struct Shared {
  RowShared row;
  uint64_t list[kMostListed], own[kMostListed];
  uint64_t last;                 // the last one listed so far
  alignas(16) uint32_t keys[4];  // [slice_len]
};

__global__ void HUNCH_CLUSTER(kClusterBlocks) __launch_bounds__(kRowThreads, 1) log_probs_kernel(const LogProbsDevice* args) {
  if (!HUNCH_HOPPER) return;
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const auto cluster = cluster_of_blocks();
  const LogProbsDevice a = *args;
  const int rank = int(cluster.block_rank()), t = threadIdx.x, len = slice_len(a.vocab);
  const int64_t r = blockIdx.x / kClusterBlocks;
  clear_bins(s.row.select);
  if (t == 0) s.row.num_listed = s.row.num_own = 0;
  cluster.sync();
  wait_for_previous();
  let_next_start();
  const RowSlice slice{s.keys, rank * len, len};
  const float* logits = a.logits + r * a.logits_stride;
  int32_t* top_ids = a.top_ids + r * a.top_ids_stride;
  float* top_values = a.top_values + r * a.top_values_stride;
  const RowStats stats = load_row(s.row, slice, logits, a.vocab);

  const int listed_count = stats.valid() ? min(a.count, a.vocab) : 0;
  if (rank == 0)
    for (int i = listed_count + t; i < a.count; i += kRowThreads)
      top_ids[i] = -1, top_values[i] = stats.valid() ? -INFINITY : NAN;
  if (!stats.valid()) {
    if (rank == 0 && t == 0 && a.ids) a.values[r * a.values_stride] = NAN;
    return;
  }

  const double best = double(value_of(stats.best));
  double sum = 0;
  slice.each([&](uint32_t k, uint32_t) {
    if (k > kNanKey) sum += double(k == stats.best ? 1.0f : exp2_of((double(value_of(k)) - best) * 1.4426950408889634));
  });
  const double log_total = log(cluster_sum(s.row, sum));
  const auto value = [&](uint32_t k) { return float((k == stats.best ? 0 : double(value_of(k)) - best) - log_total); };
  if (rank == 0 && t == 0 && a.ids) a.values[r * a.values_stride] = value(key_of(logits[a.ids[r * a.ids_stride]]));

  uint64_t last = ~uint64_t(0);
  for (int done = 0; done < listed_count;) {
    const int round = min(listed_count - done, kMostListed);
    // Entries listed before look absent.
    const auto each = [&](const auto& op) {
      slice.each([&](uint32_t k, uint32_t id) {
        if (k > kNanKey && listed(k, id) < last) op(k, id);
      });
    };
    each([&](uint32_t k, uint32_t) { count_high(s.row.select, k); });
    const Threshold kept = select_best(s.row.select, uint32_t(round), each);
    list_kept(s.row, s.list, s.own, slice, kept, [&](uint32_t k, uint32_t id) { return k > kNanKey && listed(k, id) < last; });
    cluster.sync();
    if (t == 0) s.row.num_own = 0;
    if (rank == 0) {
      sort_list(s.list, round);
      for (int i = t; i < round; i += kRowThreads) {
        top_ids[done + i] = id_listed(s.list[i]);
        top_values[done + i] = value(key_listed(s.list[i]));
      }
      if (t == 0) {
        s.row.num_listed = 0;
        if (done + round < listed_count) tell_all(&s.last, s.list[round - 1]);
      }
    }
    done += round;
    if (done < listed_count) {
      cluster.sync();
      last = s.last;
    }
  }
}

}

void enqueue_log_probs(Commands& commands, const LogProbsArgs& args) {
  const int64_t rows = args.logits.extent[0], vocab = args.logits.extent[1];
  if (rows == 0 || (!args.ids.data && args.count == 0)) return;
  HUNCH_CHECK(vocab > 0 && vocab <= kMostVocab && args.logits.stride[1] == 1 && args.count >= 0);
  HUNCH_CHECK(args.count == 0 || (args.top_ids.stride[1] == 1 && args.top_values.stride[1] == 1));
  const LogProbsDevice device{.logits = args.logits.data,
      .ids = args.ids.data,
      .values = args.values.data,
      .top_ids = args.top_ids.data,
      .top_values = args.top_values.data,
      .logits_stride = args.logits.stride[0],
      .ids_stride = args.ids.stride[0],
      .values_stride = args.values.stride[0],
      .top_ids_stride = args.top_ids.stride[0],
      .top_values_stride = args.top_values.stride[0],
      .vocab = int(vocab),
      .count = args.count};
  commands.launch(log_probs_kernel,
      {.blocks = dim3(unsigned(rows) * kClusterBlocks),
          .threads = kRowThreads,
          .shared_bytes = sizeof(Shared) + size_t(slice_len(vocab)) * sizeof(uint32_t)},
      device);
}

}
