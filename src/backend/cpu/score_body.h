// Scores of entries, reduced over the heads and rows of a pass before they are stored (ops/attention.h, ScoreArgs). Fed block by
// block by attention_body.h.
#pragma once

namespace hunch::HUNCH_ISA {

// Metrics of one block, summed over the heads of a row, then combined over rows. Query rows arrive in order: row by row, head by
// head.
struct BlockScores {
  const ScoreSink* sink = nullptr;
  int group = 1;
  float* row = nullptr;    // [64] the row's sum over heads so far
  float* total = nullptr;  // [64] rows combined so far
  int64_t in_split = 0;    // first entry of the block within its split
  int64_t first = 0;       // first entry of the block
};

HUNCH_SIMD void begin_scores(const BlockScores& s) {
  const F32 start = set1(s.sink->maximum ? -kInf : 0.0f);
  for (int t = 0; t < kKeyTiles; ++t) store(s.total + t * kLanes, start);
}
HUNCH_SIMD void add_scores(const BlockScores& s, int row, int head, const F32 (&metric)[kKeyTiles]) {
  const bool last_head = head == s.group - 1;
  float* row_sums = s.sink->row_sums ? s.sink->row_sums + row * kSplitEntries + s.in_split : nullptr;
#pragma GCC unroll 4
  for (int t = 0; t < kKeyTiles; ++t) {
    const F32 sum = head == 0 ? metric[t] : load(s.row + t * kLanes) + metric[t];
    if (!last_head) {
      store(s.row + t * kLanes, sum);
    } else if (row_sums) {
      store(row_sums + t * kLanes, s.sink->first_head ? sum : load(row_sums + t * kLanes) + sum);
    } else {
      const F32 total = load(s.total + t * kLanes);
      store(s.total + t * kLanes, s.sink->maximum ? max(sum, total) : total + sum);
    }
  }
}
// Scores of the entries from `first` on, or of their blocks; entries at and after prefix_len are not written.
HUNCH_SIMD void put_scores(const ScoreSink& sink, int64_t first, F32 scores) {
  const int64_t left = sink.prefix_len - first;
  if (left <= 0) return;
  if (!sink.blocks) return store_first(sink.out + first, scores, int(left));
  float of_blocks[2];
  max_of_halves(scores, of_blocks);
  float* out = sink.out + first / (kLanes / 2);
  out[0] = of_blocks[0];
  if (left >= kLanes) out[1] = of_blocks[1];
}
HUNCH_SIMD void end_scores(const BlockScores& s) {
  if (s.sink->row_sums) return;
  for (int t = 0; t < kKeyTiles; ++t) put_scores(*s.sink, s.first + t * kLanes, load(s.total + t * kLanes) * set1(s.sink->mean));
}

HUNCH_SIMD float lse_of(const ScoreSink& sink, int row, int head) {
  return sink.lse[row * sink.lse_row_stride + head * sink.lse_head_stride];
}
// min(1, exp(scale q.k - lse)) from raw products.
HUNCH_SIMD F32 fresh_weight(F32 product, F32 scale2, float lse) {
  return exp2_nonpositive(min(zero(), fma(product, scale2, set1(-lse * kLog2e))));
}

// Rows of one split, summed over all heads, to one score an entry.
static void combine_rows(const ScoreSink& sink, int num_rows, int64_t split) {
  const int64_t first = split * kSplitEntries;
  for (int64_t at = 0; at < kSplitEntries && first + at < sink.prefix_len; at += kLanes) {
    F32 total = set1(sink.maximum ? -kInf : 0.0f);
    for (int row = 0; row < num_rows; ++row) {
      if (!sink.row_used[row]) continue;
      const F32 sum = load(sink.row_sums + row * kSplitEntries + at);
      total = sink.maximum ? max(sum, total) : total + sum;
    }
    put_scores(sink, first + at, total * set1(sink.mean));
  }
}

}
