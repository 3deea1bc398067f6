// For tests and benches of attention: random K and V in a CUDA store and in the reference's, and one pass through either.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "backend/attend_inputs.h"
#include "backend/cuda/attention.h"
#include "backend/cuda/device_test.h"
#include "backend/cuda/kv_ops.h"
#include "backend/reference/reference_backend.h"

namespace hunch::test {

// The same entries in both stores, in a shuffled page table; what is not written is NaN.
struct KvPair {
  KvPair(Commands& commands, const KvShape& of, int64_t len, uint32_t seed = 1) : shape(of), len(len), seed(seed) {
    shape.layers = 2;
    const int64_t num_pages = len / kPageLen + 3;
    const std::vector<KvScale> scales(shape.layers, KvScale{0.25f, 2});  // FP8 reads them
    const KvGeometry geometry{shape.dtype, shape.layers, shape.kv_heads, shape.head_dim, scales};
    expected = reference.make_kv_store(geometry, num_pages);
    store = CudaKvStore::make(commands, geometry, num_pages);
    HUNCH_CHECK(store && expected);
    table.resize(num_pages);
    std::iota(table.begin(), table.end(), 0);
    std::ranges::shuffle(table, std::mt19937(seed));
    poison(0, num_pages * kPageLen);
    for (int layer = 0; layer < shape.layers; ++layer) put(commands, layer, 0, keys(layer), values(layer));
  }
  void poison(int64_t first, int64_t last) { store->poison(pages(), first, last), expected->poison(pages(), first, last); }
  // What both were given.
  Floats keys(int layer) const { return given(seed + 1, layer); }
  Floats values(int layer) const { return given(seed + 2, layer); }
  void put(Commands& commands, int layer, int64_t first, const Floats& k, const Floats& v) {
    const int64_t rows = std::ssize(k) / (shape.kv_heads * shape.head_dim);
    const auto view = [&](const float* p) { return View<const float, 3>(p, rows, shape.kv_heads, shape.head_dim); };
    const DeviceArray<float> device_k(k), device_v(v);
    enqueue_store_kv(commands, {layer, view(device_k.data()), view(device_v.data()), ref(), first});
    HUNCH_CHECK(commands.wait().ok());
    reference.store_kv({layer, view(k.data()), view(v.data()), expected_ref(), first});
  }
  View<const int32_t, 1> pages() const { return view(table); }
  KvRef ref() const { return {store.get(), pages()}; }
  KvRef expected_ref() const { return {expected.get(), pages()}; }

  KvShape shape;
  int64_t len = 0;
  uint32_t seed = 1;
  ReferenceBackend reference;
  std::unique_ptr<KvStore> store, expected;
  Ints table;

 private:
  Floats given(uint32_t first, int layer) const {
    return random_floats(size_t(len * shape.kv_heads * shape.head_dim), first + uint32_t(10 * layer));
  }
};

using Request = AttendRequest;
using Attended = AttendResult;
// One pass of several sequences, through the device (attention not null) or the reference.
inline std::vector<Attended> attend(Commands* commands, CudaAttention* attention, const std::vector<KvPair*>& pairs,
    const std::vector<Request>& requests, int layer = 1, bool keys_only = false) {
  const KvShape& shape = pairs[0]->shape;
  const int64_t heads = shape.heads(), dim = shape.head_dim;
  // Each array once on the host and, for the device, a copy.
  std::vector<DeviceArray<float>> floats;
  std::vector<DeviceArray<int32_t>> ints;
  const auto placed = [&](const Floats& v) -> const float* {
    if (!attention) return v.data();
    return floats.emplace_back(v).data();
  };
  Floats q;
  for (const Request& r : requests) append(q, r.q);
  const int64_t rows = std::ssize(q) / heads / dim;
  Floats out(q.size(), -77.0f), lse(rows * heads, -77.0f);
  std::vector<Floats> scores(requests.size());
  std::vector<float*> device_scores(requests.size());
  std::vector<AttentionRun> runs;
  int64_t row = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const Request& r = requests[i];
    AttentionRun run;
    run.first_row = row, run.num_rows = std::ssize(r.last);
    run.kv = attention ? pairs[i]->ref() : pairs[i]->expected_ref();
    run.last = view(r.last);
    run.window = r.window, run.first = r.first, run.tree = {r.parents, r.tree_first, r.tree_entry};
    if (r.parents.empty() && r.index_sets == 0 && !r.last.empty()) run.settled = std::ranges::min(r.last);
    if (r.index_sets > 0) {
      const int64_t count = std::ssize(r.index) / r.index_sets;
      const int32_t* list = r.index.data();
      if (attention) list = ints.emplace_back(r.index).data();
      run.index = View<const int32_t, 2>(list, r.index_sets, count);
      run.tail_first = r.tail_first;
    }
    if (r.metric != ScoreMetric::None) {
      run.scores.metric = r.metric, run.scores.combine = r.combine, run.scores.block = r.block;
      run.scores.prefix_len = r.prefix_len;
      run.scores.row_used = view(r.row_used);
      run.scores.lse = View<const float, 2>(placed(r.lse), run.num_rows, heads);
      scores[i].assign(r.sets * (r.prefix_len + kGuard), kUntouched);
      device_scores[i] = const_cast<float*>(placed(scores[i]));
      run.scores.out = View<float, 2>(attention ? device_scores[i] : scores[i].data(), r.sets, r.prefix_len + kGuard);
    }
    row += run.num_rows;
    runs.push_back(run);
  }
  AttentionArgs args;
  args.layer = layer, args.scale = 1 / std::sqrt(float(dim)), args.runs = runs;
  auto *device_out = const_cast<float*>(placed(out)), *device_lse = const_cast<float*>(placed(lse));
  args.q = View<const float, 3>(placed(q), rows, heads, dim);
  args.out = View<float, 3>(attention ? device_out : out.data(), rows, heads, dim);
  args.lse = View<float, 2>(attention ? device_lse : lse.data(), rows, heads);
  if (!requests[0].sinks.empty()) args.sinks = placed(requests[0].sinks);
  ScoreKeysArgs keys{args.layer, args.scale, args.q, runs[0].kv, runs[0].scores};
  if (attention) {
    if (keys_only) attention->enqueue(*commands, keys);
    else attention->enqueue(*commands, args);
    const Status status = commands->wait();
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
    const auto fetch = [](Floats& to, const float* from) {
      if (!to.empty()) HUNCH_CUDA_CHECK(cudaMemcpy(to.data(), from, to.size() * sizeof(float), cudaMemcpyDeviceToHost));
    };
    fetch(out, device_out), fetch(lse, device_lse);
    for (size_t i = 0; i < scores.size(); ++i) fetch(scores[i], device_scores[i]);
  } else if (keys_only) {
    pairs[0]->reference.score_keys(keys);
  } else {
    pairs[0]->reference.attention(args);
  }
  std::vector<Attended> results;
  for (size_t i = 0; i < requests.size(); ++i) {
    Attended result;
    const int64_t first = runs[i].first_row, n = runs[i].num_rows, stride = requests[i].prefix_len + kGuard;
    result.out = part_of(out, first * heads * dim, n * heads * dim);
    result.lse = part_of(lse, first * heads, n * heads);
    for (int set = 0; set < (requests[i].metric == ScoreMetric::None ? 0 : requests[i].sets); ++set)
      result.scores.push_back(part_of(scores[i], set * stride, stride));
    results.push_back(std::move(result));
  }
  return results;
}

}
