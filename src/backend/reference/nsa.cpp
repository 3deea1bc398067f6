// Natively trained sparse attention: contract in backend/ops/nsa.h. A row's three branches one after the other, sums in fp64; in
// a tree every row first lists the entries of its own path and makes the compressed rows behind the prefix anew.

#include "backend/ops/nsa.h"

#include <numeric>

#include "backend/reference/reference_backend.h"

namespace hunch {
namespace {

// K and V rows of one KV head that a query of it reads.
struct KvRows {
  int64_t dim = 0;
  std::vector<float> k, v;
  explicit KvRows(int64_t head_dim) : dim(head_dim) {}
  void add(const KvStore& store, int layer, int kv_head, View<const int32_t, 1> pages, int64_t entry) {
    k.resize(k.size() + size_t(dim)), v.resize(k.size());
    store.read(layer, kv_head, pages, entry, k.data() + k.size() - dim, v.data() + v.size() - dim);
  }
  int64_t count() const { return std::ssize(k) / dim; }
};

// out += share * softmax(scale q . k) v over rows [0, count) for which `reads` says so. Weights are left in `weights`, 0 for
// others.
template <class Reads>
void add_branch(
    const float* q, float scale, const KvRows& rows, float share, const Reads& reads, std::vector<float>& weights, float* out) {
  weights.assign(rows.count(), 0.0f);
  double greatest = -INFINITY, total = 0;
  std::vector<double> logits(weights.size(), 0), sums(rows.dim, 0);
  for (int64_t i = 0; i < rows.count(); ++i) {
    if (!reads(i)) continue;
    double sum = 0;
    for (int64_t d = 0; d < rows.dim; ++d) sum += double(q[d]) * double(rows.k[i * rows.dim + d]);
    logits[i] = double(scale) * sum;
    greatest = std::max(greatest, logits[i]);
  }
  if (greatest == -INFINITY) return;
  for (int64_t i = 0; i < rows.count(); ++i)
    if (reads(i)) total += std::exp(logits[i] - greatest);
  for (int64_t i = 0; i < rows.count(); ++i) {
    if (!reads(i)) continue;
    const double weight = std::exp(logits[i] - greatest) / total;
    weights[i] = float(weight);
    for (int64_t d = 0; d < rows.dim; ++d) sums[d] += weight * double(rows.v[i * rows.dim + d]);
  }
  for (int64_t d = 0; d < rows.dim; ++d) out[d] += float(double(share) * sums[d]);
}

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// The entries of a row's path, position by position.
std::vector<int64_t> path_of(const NsaRun& run, int64_t row) {
  std::vector<int64_t> entries(size_t(run.last(row)) + 1);
  std::iota(entries.begin(), entries.end(), 0);
  if (run.tree.parents.empty()) return entries;
  int64_t place = run.last(row);
  for (int32_t x = run.tree.first + int32_t(row); x >= 0; x = run.tree.parents[x], --place)
    entries[place] = run.tree.first_entry + x;
  HUNCH_CHECK(place == run.tree.first_entry - 1);
  return entries;
}

}

void ReferenceBackend::compress_kv(const CompressKvArgs& args) {
  KvStore& from = *args.kv.store;
  const NsaShape& s = *args.nsa.shape;
  const int64_t dim = from.head_dim, heads = from.kv_heads;
  HUNCH_CHECK(args.rows.store->head_dim == dim && args.rows.store->kv_heads == heads && args.rows.store->dtype == from.dtype);
  if (args.last <= args.first) return;
  Compressor compressor;
  compressor.use(args.nsa, int(dim));
  std::vector<int64_t> entries(s.cmp_len);
  std::vector<float> k(heads * dim), v(k.size());
  for (int64_t i = args.first; i < args.last; ++i) {
    std::iota(entries.begin(), entries.end(), i * s.cmp_stride);
    for (int head = 0; head < heads; ++head)
      compressor.row(from, args.layer, head, args.kv.pages, entries, i, k.data() + head * dim, v.data() + head * dim);
    store_kv({
        .layer = args.layer,
        .k = View<const float, 3>(k.data(), 1, heads, dim),
        .v = View<const float, 3>(v.data(), 1, heads, dim),
        .kv = args.rows,
        .first_entry = i,
    });
  }
  counters_.kv_bytes += size_t((args.last - args.first) * s.cmp_len * heads) * 2 * kv_row_bytes(from.dtype, int(dim));
}

void ReferenceBackend::nsa_attention(const NsaAttentionArgs& args) {
  const NsaShape& s = *args.nsa.shape;
  std::vector<float> weights, importance, scores;
  std::vector<int32_t> chosen(s.sel_count);
  for (const NsaRun& run : args.runs) {
    KvStore& store = *run.kv.store;
    const int kv_heads = store.kv_heads, dim = store.head_dim, group = int(args.q.extent[1]) / kv_heads;
    HUNCH_CHECK(group * kv_heads == args.q.extent[1] && args.q.extent[2] == dim);
    Compressor compressor;
    compressor.use(args.nsa, dim);
    // Owned rows are rounded as stored ones are.
    ReferenceKvStore rounded(
        {.dtype = store.dtype, .layers = store.layers, .kv_heads = 1, .head_dim = dim, .scales = store.scales}, 1);
    const int32_t page = 0;
    const View<const int32_t, 1> rounded_pages(&page, 1);
    std::vector<float> k(dim), v(k.size()), unread(k.size());
    for (int64_t row = 0; row < run.num_rows; ++row) {
      const int64_t position = run.last(row), own = position / s.sel_block, r = run.first_row + row;
      const auto path = path_of(run, row);
      const int64_t kept = run.tree.parents.empty() ? s.rows_of(position + 1) : s.rows_of(run.tree.first_entry);
      for (int kv_head = 0; kv_head < kv_heads; ++kv_head) {
        KvRows compressed(dim), entries(dim);
        for (int64_t i = 0; i < kept; ++i) compressed.add(*run.rows.store, args.layer, kv_head, run.rows.pages, i);
        for (int64_t i = kept; i < s.rows_of(position + 1); ++i) {
          compressor.row(store, args.layer, kv_head, run.kv.pages, std::span(path).subspan(i * s.cmp_stride, s.cmp_len), i,
              k.data(), v.data());
          rounded.write(args.layer, 0, rounded_pages, 0, k.data(), v.data());
          compressed.add(rounded, args.layer, 0, rounded_pages, 0);
        }
        for (const int64_t e : path) entries.add(store, args.layer, kv_head, run.kv.pages, e);

        importance.assign(compressed.count(), 0.0f), scores.assign(own + 1, 0.0f);
        const auto gate = [&](int head, int branch) { return sigmoid(args.gates(r, 3 * head + branch)); };
        for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          float* out = args.out.data ? &args.out(r, head, 0) : unread.data();
          std::fill(out, out + dim, 0.0f);
          add_branch(
              &args.q(r, head, 0), args.scale, compressed, gate(head, 0), [](int64_t) { return true; }, weights, out);
          for (size_t i = 0; i < weights.size(); ++i) importance[i] += weights[i];
        }
        int32_t* blocks = args.chosen.data ? &args.chosen(r, kv_head, 0) : chosen.data();
        if (!args.given) {
          score_blocks(s, importance.data(), compressed.count(), own + 1, scores.data());
          choose_blocks(s, position, scores.data(), blocks);
        }
        if (!args.out.data) continue;
        const auto is_chosen = [&](int64_t e) {
          return std::find(blocks, blocks + s.sel_count, e / s.sel_block) != blocks + s.sel_count;
        };
        const auto in_window = [&](int64_t e) { return e > position - s.window; };
        for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          const float* q = &args.q(r, head, 0);
          add_branch(q, args.scale, entries, gate(head, 1), is_chosen, weights, &args.out(r, head, 0));
          if (s.window > 0) add_branch(q, args.scale, entries, gate(head, 2), in_window, weights, &args.out(r, head, 0));
        }
        counters_.kv_bytes += size_t(compressed.count() + entries.count()) * 2 * kv_row_bytes(store.dtype, dim);
      }
    }
  }
}

}
