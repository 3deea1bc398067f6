// Shared by the tests of natively trained sparse attention: a sequence with its compressed rows, and one pass over it.
#pragma once

#include "backend/cpu/kv_fixture.h"
#include "backend/ops/nsa.h"

namespace hunch {

inline NsaShape nsa_std(int len, int stride, int block, int count, int window, NsaShape::Kind kind = NsaShape::Kind::Weighted) {
  NsaShape s;
  s.variant = "std", s.kind = kind;
  s.cmp_len = len, s.cmp_stride = stride, s.sel_block = block, s.sel_count = count;
  s.init_blocks = 1, s.local_blocks = 2, s.window = window;
  return s;
}
inline NsaShape nsa_fla(int block, int count, int window) {
  NsaShape s;
  s.variant = "fla", s.kind = NsaShape::Kind::Mean, s.rope_before = true;
  s.cmp_len = s.cmp_stride = s.sel_block = block, s.sel_count = count;
  s.local_blocks = 1, s.window = window;
  return s;
}

// Weights of a compressor, of a size that keeps compressed rows like others.
struct NsaValues {
  NsaValues(const NsaShape& nsa, const KvShape& shape) : nsa(nsa) {
    const bool linear = nsa.kind == NsaShape::Kind::Linear;
    const size_t rows = size_t(shape.kv_heads * nsa.cmp_len), dim = size_t(shape.head_dim);
    const size_t count = linear ? rows * dim * dim : rows;
    const float scale = linear ? 1 / std::sqrt(float(nsa.cmp_len) * float(dim)) : 1 / std::sqrt(float(nsa.cmp_len));
    key = random_floats(count, 41, scale), value = random_floats(count, 42, scale);
    if (nsa.kind == NsaShape::Kind::Mean) key.assign(count, 1 / float(nsa.cmp_len)), value = key;
    else offset = random_floats(size_t(shape.kv_heads) * dim, 43, 0.5f);
    for (size_t i = 0; i < dim / 2; ++i) inv_freq.push_back(std::pow(500.0f, -float(i) / float(dim / 2)));
  }
  NsaLayer layer() const {
    return {&nsa, key.data(), value.data(), offset.empty() ? nullptr : offset.data(), inv_freq.data(), 1.25f};
  }
  NsaShape nsa;
  Floats key, value, offset, inv_freq;
};

// At most kNsaRoom tokens may follow the `len` that are stored (KvCase has pages for 128 more).
inline constexpr int64_t kNsaRoom = 128;
struct NsaCase {
  NsaCase(Backend& backend, const NsaShape& nsa, const KvShape& shape, int64_t len)
      : kv(backend, shape, len, 1), values(nsa, shape), backend(backend) {
    const int64_t pages = nsa.rows_of(len + kNsaRoom) / kPageLen + 1;
    rows = backend.make_kv_store(geometry_of(shape), pages);
    table.resize(pages);
    std::iota(table.rbegin(), table.rend(), 0);
    rows->poison(row_pages(), 0, pages * kPageLen);
    compress(0, len);
  }
  View<const int32_t, 1> row_pages() const { return view(table); }
  KvRef row_ref() const { return {rows.get(), row_pages()}; }
  // Rows that end in the tokens [first, last).
  void compress(int64_t first, int64_t last) {
    backend.compress_kv({.layer = 0,
        .nsa = values.layer(),
        .kv = kv.ref(),
        .rows = row_ref(),
        .first = values.nsa.rows_of(first),
        .last = values.nsa.rows_of(last)});
  }

  KvCase kv;
  NsaValues values;
  std::unique_ptr<KvStore> rows;
  Ints table;
  Backend& backend;
};

struct NsaRequest {
  Ints last;
  Floats q, gates;
  Ints parents;
  int tree_first = 0;
  int64_t tree_entry = 0;
  Ints given;  // [row][kv_head][sel_count]; empty: the op chooses
};
struct NsaResult {
  Floats out;
  Ints chosen;
};

inline NsaRequest nsa_request(const KvShape& shape, Ints last, uint32_t seed = 9) {
  NsaRequest request;
  request.q = random_queries(shape, std::ssize(last), seed);
  request.gates = random_floats(last.size() * size_t(3 * shape.heads()), seed + 1);
  request.last = std::move(last);
  return request;
}
inline NsaRequest nsa_rows_of(const NsaRequest& request, size_t first, size_t count, const KvShape& shape) {
  NsaRequest part;
  const size_t width = shape.width(), gates = size_t(3 * shape.heads());
  part.last = part_of(request.last, first, count);
  part.q = part_of(request.q, first * width, count * width), part.gates = part_of(request.gates, first * gates, count * gates);
  part.parents = request.parents, part.tree_first = request.tree_first + int(first), part.tree_entry = request.tree_entry;
  return part;
}

// Several sequences in one pass.
inline std::vector<NsaResult> nsa_together(const std::vector<const NsaCase*>& cases, const std::vector<NsaRequest>& requests) {
  const KvShape& shape = cases[0]->kv.shape;
  const int64_t n = cases[0]->values.nsa.sel_count;
  Floats q, gates;
  Ints chosen;
  std::vector<NsaRun> runs;
  int64_t rows = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const NsaRequest& r = requests[i];
    NsaRun run{.first_row = rows, .num_rows = std::ssize(r.last), .kv = cases[i]->kv.ref(), .rows = cases[i]->row_ref()};
    run.last = view(r.last);
    run.tree = {r.parents, r.tree_first, r.tree_entry};
    runs.push_back(run);
    rows += run.num_rows;
    append(q, r.q), append(gates, r.gates), append(chosen, r.given);
  }
  const bool given = !chosen.empty();
  chosen.resize(rows * shape.kv_heads * n, -77);
  Floats out(q.size(), -77.0f);
  cases[0]->backend.nsa_attention({.nsa = cases[0]->values.layer(),
      .scale = 1 / std::sqrt(float(shape.head_dim)),
      .q = view(q, rows, shape.heads(), shape.head_dim),
      .gates = view(gates, rows, 3 * shape.heads()),
      .out = view(out, rows, shape.heads(), shape.head_dim),
      .runs = runs,
      .chosen = view(chosen, rows, shape.kv_heads, n),
      .given = given});
  std::vector<NsaResult> results;
  const int64_t width = shape.width(), list = shape.kv_heads * n;
  for (const NsaRun& run : runs)
    results.push_back(
        {part_of(out, run.first_row * width, run.num_rows * width), part_of(chosen, run.first_row * list, run.num_rows * list)});
  return results;
}
inline NsaResult nsa_one(const NsaCase& c, const NsaRequest& request) { return nsa_together({&c}, {request})[0]; }

inline std::string name_of(const NsaShape& s) {
  return fmt::format(
      "{} kind {} {}/{}/{} n {} window {}", s.variant, int(s.kind), s.cmp_len, s.cmp_stride, s.sel_block, s.sel_count, s.window);
}

}
