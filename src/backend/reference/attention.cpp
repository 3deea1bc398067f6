// Attention over paged keys and the scores of selections: contract in backend/ops/attention.h. A row's logits are made, their
// soft maximum taken, and the values summed in fp64: no blocks, no splits, nothing to merge.

#include "backend/ops/attention.h"

#include <numeric>
#include <set>

#include "backend/reference/reference_backend.h"

namespace hunch {
namespace {

// K and V of the first `len` entries of one head as fp32, made once for all rows that read them.
struct Entries {
  Entries(const KvRef& kv, int layer, int kv_head, int64_t first, int64_t last) : head_dim(kv.store->head_dim), first(first) {
    k.resize((last - first) * head_dim), v.resize(k.size());
    for (int64_t e = first; e < last; ++e)
      kv.store->read(layer, kv_head, kv.pages, e, k.data() + (e - first) * head_dim, v.data() + (e - first) * head_dim);
  }
  const float* key(int64_t e) const { return k.data() + (e - first) * head_dim; }
  const float* value(int64_t e) const { return v.data() + (e - first) * head_dim; }
  int64_t head_dim, first;
  std::vector<float> k, v;
};

float scaled_dot(float scale, const float* q, const float* k, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double(q[i]) * double(k[i]);
  return float(scale * sum);
}

// The entries that a row of a run reads, in the order of its tokens. In a tree the one at place first_entry + d is that of the
// row's ancestor at depth d.
std::vector<int64_t> entries_of(const AttentionRun& run, int64_t row, int kv_head) {
  const int64_t last = run.last(row), first = std::max(oldest_entry(run, last), first_of_head(run, kv_head));
  std::vector<int64_t> entries(std::max<int64_t>(0, last - first + 1));
  std::iota(entries.begin(), entries.end(), first);
  if (run.tree.parents.empty()) return entries;
  int64_t place = last;
  for (int32_t x = run.tree.first + int32_t(row); x >= 0; x = run.tree.parents[x], --place)
    if (place >= first) entries[place - first] = run.tree.first_entry + x;
  HUNCH_CHECK(place == run.tree.first_entry - 1);
  return entries;
}

// The entries of the store that a row's entries are, for one KV head.
std::vector<int64_t> stored(const AttentionRun& run, int kv_head, std::vector<int64_t> entries) {
  if (!run.index.data) return entries;
  const int64_t set = run.index.extent[0] == 1 ? 0 : kv_head, count = run.index.extent[1];
  for (int64_t& e : entries) e = e < count ? run.index(set, e) : run.tail_first + (e - count);
  return entries;
}

// One row of one head; `sink`: a logit without a value, -inf: none. Returns the log-sum-exp.
float attend_row(const float* q, float scale, const Entries& entries, const std::vector<int64_t>& read, float sink,
    std::vector<float>& logits, std::vector<double>& sums, float* out) {
  logits.resize(read.size());
  float greatest = sink;
  if (read.empty()) {
    std::fill(out, out + entries.head_dim, 0.0f);
    return greatest;
  }
  for (size_t i = 0; i < read.size(); ++i) {
    logits[i] = scaled_dot(scale, q, entries.key(read[i]), entries.head_dim);
    greatest = std::max(greatest, logits[i]);
  }
  double total = double(std::exp(sink - greatest));
  sums.assign(entries.head_dim, 0);
  for (size_t i = 0; i < read.size(); ++i) {
    const float weight = std::exp(logits[i] - greatest);
    total += double(weight);
    const float* value = entries.value(read[i]);
    for (int64_t d = 0; d < entries.head_dim; ++d) sums[d] += double(weight * value[d]);
  }
  for (int64_t d = 0; d < entries.head_dim; ++d) out[d] = float(sums[d] / total);
  return greatest + float(std::log(total));
}

// u[r] of one entry: the mean metric of the query heads [first_head, last_head) that form the set's part under one key.
float metric(const ScoreArgs& scores, float scale, View<const float, 2> q, int64_t row, int head, const float* key) {
  const float logit = scaled_dot(scale, &q(head, 0), key, q.extent[1]);
  if (scores.metric == ScoreMetric::Logit) return logit;
  return std::min(1.0f, std::exp(logit - scores.lse(row, head)));
}

// Scores of the prefix for rows q [rows of the run][head][head_dim].
void collect_scores(const ScoreArgs& scores, int layer, float scale, View<const float, 3> q, const KvRef& kv) {
  if (scores.metric == ScoreMetric::None || scores.prefix_len == 0) return;
  const int kv_heads = kv.store->kv_heads, heads = int(q.extent[1]), group = heads / kv_heads;
  const int64_t sets = scores.out.extent[0];
  HUNCH_CHECK(sets == kv_heads || sets == 1);
  HUNCH_CHECK((scores.block == 1 || scores.block == kScoreBlock) && scores.prefix_len % scores.block == 0);
  const int kv_heads_per_set = sets == 1 ? kv_heads : 1;
  for (int64_t set = 0; set < sets; ++set) {
    std::vector<Entries> entries;
    for (int i = 0; i < kv_heads_per_set; ++i)
      entries.emplace_back(kv, layer, int(set) * kv_heads_per_set + i, 0, scores.prefix_len);
    for (int64_t e = 0; e < scores.prefix_len; ++e) {
      float score = scores.combine == ScoreCombine::Sum ? 0 : -INFINITY;
      for (int64_t row = 0; row < q.extent[0]; ++row) {
        if (!scores.row_used(row)) continue;
        double sum = 0;
        for (int i = 0; i < kv_heads_per_set * group; ++i) {
          const int head = int(set) * kv_heads_per_set * group + i;
          sum += double(metric(scores, scale, q[row], row, head, entries[i / group].key(e)));
        }
        const float mean = float(sum / (kv_heads_per_set * group));
        score = scores.combine == ScoreCombine::Sum ? score + mean : std::max(score, mean);
      }
      float& out = scores.out(set, e / scores.block);
      out = e % scores.block == 0 ? score : std::max(out, score);
    }
  }
}

}

void ReferenceBackend::attention(const AttentionArgs& args) {
  const int heads = int(args.q.extent[1]);
  std::vector<float> logits;
  std::vector<double> sums;
  for (const AttentionRun& run : args.runs) {
    if (run.num_rows == 0) continue;
    const int group = heads / run.kv.store->kv_heads;
    HUNCH_CHECK(first_allowed(run));
    HUNCH_CHECK(!run.index.data || run.index.extent[0] == 1 || run.index.extent[0] == run.kv.store->kv_heads);
    for (int kv_head = 0; kv_head < run.kv.store->kv_heads; ++kv_head) {
      std::set<int64_t> asked;
      std::vector<std::vector<int64_t>> read;
      int64_t first = INT64_MAX, end = 0;
      for (int64_t row = 0; row < run.num_rows; ++row) {
        const auto entries = entries_of(run, row, kv_head);
        asked.insert(entries.begin(), entries.end());
        read.push_back(stored(run, kv_head, entries));
        for (int64_t e : read.back()) first = std::min(first, e), end = std::max(end, e + 1);
      }
      const Entries entries(run.kv, args.layer, kv_head, std::min(first, end), end);
      for (int64_t row = 0; row < run.num_rows; ++row) {
        for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          const float lse = attend_row(&args.q(run.first_row + row, head, 0), args.scale, entries, read[row],
              args.sinks ? args.sinks[head] : -INFINITY, logits, sums, &args.out(run.first_row + row, head, 0));
          if (args.lse.data) args.lse(run.first_row + row, head) = lse;
        }
      }
      counters_.kv_bytes += asked.size() * 2 * kv_row_bytes(run.kv.store->dtype, run.kv.store->head_dim);
    }
    collect_scores(run.scores, args.layer, args.scale, args.q.slice(run.first_row, run.num_rows), run.kv);
    counters_.score_bytes += bytes_of(run.scores);
  }
}

void ReferenceBackend::score_keys(const ScoreKeysArgs& args) {
  collect_scores(args.scores, args.layer, args.scale, args.q, args.kv);
  counters_.score_bytes += bytes_of(args.scores);
  counters_.kv_bytes +=
      size_t(args.scores.prefix_len) * args.kv.store->kv_heads * kv_row_bytes(args.kv.store->dtype, args.kv.store->head_dim);
}

}
