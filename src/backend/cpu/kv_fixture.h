// Shared by the tests of attention, scores and gather: random KV in two stores, and one pass of a sequence through a backend.
#pragma once

#include <fmt/format.h>

#include <map>
#include <numeric>
#include <random>

#include "backend/attend_inputs.h"
#include "backend/cpu/test_backends.h"

namespace hunch {

// At least n, kept: drawing them is most of what many tests do.
inline const Floats& first_floats(size_t n, uint32_t seed) {
  static std::map<uint32_t, Floats> drawn;
  auto& out = drawn[seed];
  if (out.size() < n) out = random_floats(n, seed);
  return out;
}

inline const std::vector<DType> kKvTypes{DType::F32, DType::F16, DType::BF16, DType::I16, DType::Q8_0, DType::F8_E4M3};

// Every instruction set with every type of K and V.
inline std::vector<std::pair<std::string, DType>> every_store() {
  std::vector<std::pair<std::string, DType>> out;
  for (const std::string& isa : available_isas())
    for (DType dtype : kKvTypes) out.emplace_back(isa, dtype);
  return out;
}

// FP8 with other scales than 1, and of K others than of V.
inline constexpr KvScale kTestScales[] = {{0.25f, 2}, {4, 0.125f}};
inline KvGeometry geometry_of(const KvShape& shape) {
  return {shape.dtype, shape.layers, shape.kv_heads, shape.head_dim, std::span(kTestScales).first(shape.layers)};
}

// A store with `len` entries of random rows (the same for the same seed on every backend) in a shuffled page table.
struct KvCase {
  KvCase(Backend& backend, const KvShape& shape, int64_t len, uint32_t seed = 1) : shape(shape), len(len) {
    const int64_t num_pages = len / kPageLen + 3;
    store = backend.make_kv_store(geometry_of(shape), num_pages);
    table.resize(num_pages);
    std::iota(table.begin(), table.end(), 0);
    std::ranges::shuffle(table, std::mt19937(seed));
    store->poison(pages(), 0, num_pages * kPageLen);  // whatever is not written must not matter
    const int64_t width = int64_t(shape.kv_heads) * shape.head_dim;
    const auto &k = first_floats(len * width, seed + 1), &v = first_floats(len * width, seed + 2);
    const auto rows = [&](const Floats& of) { return view(of, len, shape.kv_heads, shape.head_dim); };
    for (int layer = 0; layer < shape.layers; ++layer) backend.store_kv({layer, rows(k), rows(v), ref()});
  }
  View<const int32_t, 1> pages() const { return view(table); }
  KvRef ref() const { return {store.get(), pages()}; }
  // Another store, of NaN, in pages that run backwards.
  void empty(Backend& backend, const KvGeometry& geometry, int64_t num_pages) {
    store = backend.make_kv_store(geometry, num_pages);
    table.resize(num_pages);
    std::iota(table.rbegin(), table.rend(), 0);
    store->poison(pages(), 0, num_pages * kPageLen);
  }
  // Its K, then its V.
  Floats entry(int layer, int head, int64_t e) const {
    Floats out(2 * shape.head_dim);
    store->read(layer, head, pages(), e, out.data(), out.data() + shape.head_dim);
    return out;
  }

  KvShape shape;
  int64_t len = 0;
  std::unique_ptr<KvStore> store;
  Ints table;
};

// Entries [first, last) of every layer and head: those that `source` names of another store, bit for bit.
template <class Source>
void expect_entries(
    const KvCase& got, int64_t first, int64_t last, const KvCase& from, Source&& source, const std::string& what) {
  for (int layer = 0; layer < got.shape.layers; ++layer)
    for (int head = 0; head < got.shape.kv_heads; ++head)
      for (int64_t e = first; e < last; ++e)
        ASSERT_TRUE(same_bits(got.entry(layer, head, e), from.entry(layer, head, source(head, e))))
            << what << " " << from.shape.name() << " entry " << e;
}
inline void expect_entries(const KvCase& got, int64_t first, int64_t last, const KvCase& from, const std::string& what) {
  expect_entries(
      got, first, last, from, [](int, int64_t e) { return e; }, what);
}

// NaN in the entries of all rows of a tree but those on a path.
inline void poison_beside(const KvCase& kv, int64_t first_entry, int rows, const std::vector<int>& path) {
  for (int row = 0; row < rows; ++row)
    if (std::ranges::find(path, row) == path.end()) kv.store->poison(kv.pages(), first_entry + row, first_entry + row + 1);
}

// The entry of a tree's row: the same for the same row, wherever it stands.
inline void store_row(Backend& backend, const KvCase& kv, int64_t entry, int row) {
  const int64_t heads = kv.shape.kv_heads, dim = kv.shape.head_dim;
  const auto k = random_floats(heads * dim, 1000 + uint32_t(row)), v = random_floats(heads * dim, 2000 + uint32_t(row));
  backend.store_kv({0, view(k, 1, heads, dim), view(v, 1, heads, dim), kv.ref(), entry});
}

inline ScoreArgs score_args(const AttendRequest& request, const KvShape& shape, Floats& scores) {
  ScoreArgs args;
  if (request.metric == ScoreMetric::None) return args;
  args.metric = request.metric, args.combine = request.combine, args.prefix_len = request.prefix_len, args.block = request.block;
  args.row_used = view(request.row_used);
  args.lse = view(request.lse, request.last.size(), shape.heads());
  scores.assign(request.sets * (request.prefix_len + kGuard), kUntouched);
  args.out = view(scores, request.sets, request.prefix_len + kGuard);
  return args;
}

// Set by set, what score_args made room for.
inline std::vector<Floats> sets_of(const AttendRequest& request, const Floats& scores) {
  std::vector<Floats> out;
  const int64_t stride = request.prefix_len + kGuard;
  for (int64_t at = 0; at < std::ssize(scores); at += stride) out.push_back(part_of(scores, at, stride));
  return out;
}

// Several sequences in one pass; runs[i] reads cases[i].
inline std::vector<AttendResult> attend_together(
    Backend& backend, const std::vector<const KvCase*>& cases, const std::vector<AttendRequest>& requests, int layer = 0) {
  const KvShape& shape = cases[0]->shape;
  Floats q;
  std::vector<AttentionRun> runs;
  std::vector<Floats> scores(requests.size());
  int64_t rows = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    AttentionRun run;
    run.first_row = rows, run.num_rows = std::ssize(requests[i].last);
    run.kv = cases[i]->ref();
    run.last = view(requests[i].last);
    run.window = requests[i].window, run.first = requests[i].first;
    run.tree = {requests[i].parents, requests[i].tree_first, requests[i].tree_entry};
    run.scores = score_args(requests[i], shape, scores[i]);
    runs.push_back(run);
    rows += run.num_rows;
    append(q, requests[i].q);
  }
  Floats out(q.size(), -77.0f), lse(rows * shape.heads(), -77.0f);
  backend.attention({.layer = layer,
      .scale = 1 / std::sqrt(float(shape.head_dim)),
      .q = view(q, rows, shape.heads(), shape.head_dim),
      .out = view(out, rows, shape.heads(), shape.head_dim),
      .lse = view(lse, rows, shape.heads()),
      .sinks = requests[0].sinks.empty() ? nullptr : requests[0].sinks.data(),
      .runs = runs});
  std::vector<AttendResult> results;
  for (size_t i = 0; i < runs.size(); ++i) {
    const int64_t heads = shape.heads(), width = shape.width(), first = runs[i].first_row, n = runs[i].num_rows;
    results.push_back(
        {part_of(out, first * width, n * width), part_of(lse, first * heads, n * heads), sets_of(requests[i], scores[i])});
  }
  return results;
}
inline AttendResult attend_one(Backend& backend, const KvCase& kv, const AttendRequest& request, int layer = 0) {
  return attend_together(backend, {&kv}, {request}, layer)[0];
}

// |q.k - reference|, scaled: fp32, or with the query in 16 bits of its greatest element (6 or so): steps of 2e-4 (i16: of 2^-18
// of all sizes together, 4e-4), half of one in each of up to 128 products that add up like a random walk.
inline float logit_tolerance(DType dtype) { return dtype == DType::I16 ? 5e-4f : dtype == DType::Q8_0 ? 2.5e-4f : 3e-5f; }
// |out - reference|: with bf16 products the weights are rounded to 8 bits, an error of at most 2^-8 of a mean of values up to 4
// or so; those of V codes have 14 bits of a block's greatest; all else is fp32 with an exponential good to a few 1e-7.
inline float out_tolerance(const std::string& isa, DType dtype) {
  return isa == "avx512_bf16" && dtype == DType::BF16 ? 1.2e-2f : logit_tolerance(dtype);
}

// What the reference says of a pass over a cache that ends with the request's last entry, on every instruction set.
// Nothing before the request's first entry is known: rows that have nothing else to read are zeros.
inline void expect_reference(int threads, const KvShape& shape, const AttendRequest& request) {
  ReferenceBackend reference;
  const int64_t len = *std::ranges::max_element(request.last) + 1 + std::ssize(request.parents);
  const int64_t unknown = std::min(request.first, len);
  const KvCase expected_kv(reference, shape, len);
  expected_kv.store->poison(expected_kv.pages(), 0, unknown);
  const AttendResult expected = attend_one(reference, expected_kv, request);
  const size_t heads = shape.heads(), width = shape.width();
  for (const std::string& isa : available_isas()) {
    const auto cpu = make_cpu(isa, threads);
    const KvCase kv(*cpu, shape, len);
    kv.store->poison(kv.pages(), 0, unknown);
    const AttendResult got = attend_one(*cpu, kv, request);
    SCOPED_TRACE(fmt::format("{} {} rows {} from {} to {} window {}", isa, shape.name(), request.last.size(), request.first,
        request.last.back(), request.window));
    EXPECT_LE(distance(got.out, expected.out), out_tolerance(isa, shape.dtype));
    for (size_t i = 0; i < got.lse.size(); ++i) {
      if (request.last[i / heads] < request.first) {
        EXPECT_EQ(got.lse[i], -INFINITY);
        EXPECT_EQ(expected.lse[i], -INFINITY);
        for (size_t d = 0; d < width; ++d) ASSERT_EQ(got.out[i / heads * width + d], 0.0f);
      } else {
        EXPECT_NEAR(got.lse[i], expected.lse[i], logit_tolerance(shape.dtype));
      }
    }
  }
}

}
