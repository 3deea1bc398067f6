// Attention of query rows over blocks of 64 entries: online softmax with at most one rescale a block, for all rows of a run and
// all query heads of one KV head at once. Contract: ops/attention.h; layout: kv_store.h; reasons and figures:
// docs/kernels/attention.md.
#pragma once

namespace hunch::HUNCH_ISA {

// Where the parts of an item's scratch lie; one line per query row where not said otherwise.
template <class Kv>
struct AttendScratch {
  typename Kv::Query* q;          // [query_stride]
  float *states, *totals;         // [state_len] of the open split; folded splits
  float* lane_sums;               // [16] sum of weights by lane
  float *maximum, *score_factor;  // greatest q.k so far, or a little less; exp(maximum - lse of the scores)
  float* scores;                  // [kQueryTile][64]
  typename Kv::Factor* weights;   // [kQueryTile][64]
  float *score_row, *score_total;
  float* units;            // [kQueryTile] of the weights of V codes
  float* widened;          // [K | V][64][padded_dim] of a block of FP8
  std::byte* path_chunks;  // [kTreeBlocks][chunk_bytes]

  AttendScratch(std::byte* memory, int64_t query_rows, int padded_dim) {
    std::byte* at = memory;
    q = reinterpret_cast<typename Kv::Query*>(take(at, query_rows * padded_dim));
    states = take(at, query_rows * state_len(padded_dim));
    totals = take(at, query_rows * state_len(padded_dim));
    lane_sums = take(at, query_rows * kLanes);
    maximum = take(at, (query_rows + 15) / 16 * 16);
    score_factor = take(at, (query_rows + 15) / 16 * 16);
    scores = take(at, kQueryTile * kBlockLen);
    weights = reinterpret_cast<typename Kv::Factor*>(take(at, kQueryTile * kBlockLen));
    score_row = take(at, kBlockLen);
    score_total = take(at, kBlockLen);
    units = take(at, kQueryTile);
    widened = take(at, 2 * kBlockLen * kMostWidened);
    path_chunks = at;
  }
  static float* take(std::byte*& at, int64_t floats) {
    float* p = reinterpret_cast<float*>(at);
    at += floats * sizeof(float);
    return p;
  }
};

template <class Kv>
void prepare_queries(const QueryRows& rows, const KeyPlane& keys, typename Kv::Query* q) {
  for (int row = 0; row < rows.num_rows; ++row)
    for (int head = 0; head < rows.group; ++head, q += Kv::query_stride(keys.padded_dim)) {
      const float* from = rows.q + row * rows.row_stride + head * rows.head_stride;
      if constexpr (Kv::kCodes) {
        code_query<Kv>(from, keys.head_dim, keys.padded_dim, q);
      } else if constexpr (Kv::kUnit != 0) {
        const F32 unit = set1(Kv::kUnit * keys.scale.k);
        for (int d = 0; d < keys.padded_dim; d += kLanes) Kv::put(q + d, load_row(from + d, keys.head_dim - d) * unit);
      } else {
        for (int d = 0; d < keys.padded_dim; d += kLanes) Kv::put(q + d, load_row(from + d, keys.head_dim - d));
      }
    }
}

// scores[i][entry] = q.k of query rows [at, at + count) with the block's keys.
template <class Kv, class As = Kv>
void score_queries(const AttendScratch<Kv>& scratch, const std::byte* chunk, int padded_dim, int at, int count, Ahead& ahead) {
  const int64_t stride = Kv::query_stride(padded_dim);
  if constexpr (Kv::kCodes) score_code_rows<Kv>(chunk, padded_dim, scratch.q + at * stride, stride, count, scratch.scores, ahead);
  else score_rows<As>(chunk, padded_dim, scratch.q + at * stride, stride, count, scratch.scores, ahead);
}

// total <- total merged with part, both states of one query row; part covers later entries.
static void fold_state(float* total, const float* part, int padded_dim) {
  const float ma = total[padded_dim], mb = part[padded_dim], m = ma > mb ? ma : mb;
  const F32 fa = exp2_nonpositive(set1(ma - m)), fb = exp2_nonpositive(set1(mb - m));
  for (int d = 0; d < padded_dim; d += kLanes) store(total + d, fma(load(total + d), fa, load(part + d) * fb));
  alignas(64) float sums[kLanes];
  store(sums, fma(set1(total[padded_dim + 1]), fa, set1(part[padded_dim + 1]) * fb));
  total[padded_dim] = m;
  total[padded_dim + 1] = sums[0];
}

// A sink joins the sum of a row whose splits are all folded: returns the factor of the accumulators, 1 over the sum included.
// `maximum` and `sum` become those with the sink.
static float close_sum(const AttendItem& item, int head, float& maximum, float& sum) {
  if (!item.sinks) return 1.0f / sum;
  const float sink = item.sinks[head] * (1 / kLn2), most = sink > maximum ? sink : maximum;
  alignas(64) float rest[kLanes], added[kLanes];
  store(rest, exp2_nonpositive(set1(maximum - most))), store(added, exp2_nonpositive(set1(sink - most)));
  sum = sum * rest[0] + added[0], maximum = most;
  return rest[0] / sum;
}

// The state of a row whose splits are all folded, to its output.
static void write_row(const AttendItem& item, int row, int head, const float* state) {
  const int head_dim = item.keys.head_dim, padded_dim = item.keys.padded_dim;
  float* out = item.out + row * item.out_row_stride + head * item.out_head_stride;
  float maximum = state[padded_dim], sum = state[padded_dim + 1];
  const F32 inverse = set1(close_sum(item, head, maximum, sum));
  for (int d = 0; d < head_dim; d += kLanes) store_first(out + d, load(state + d) * inverse, head_dim - d);
  if (!item.lse) return;
  alignas(64) float lse[kLanes];
  store(lse, fma(set1(maximum), set1(kLn2), log(set1(sum))));
  item.lse[row * item.lse_row_stride + head * item.lse_head_stride] = lse[0];
}

// Of a row that reads nothing.
static void write_nothing(const AttendItem& item, int row) {
  for (int head = 0; head < item.rows.group; ++head) {
    float* out = item.out + row * item.out_row_stride + head * item.out_head_stride;
    for (int d = 0; d < item.keys.head_dim; ++d) out[d] = 0;
    if (item.lse) item.lse[row * item.lse_row_stride + head * item.lse_head_stride] = item.sinks ? item.sinks[head] : -kInf;
  }
}

// A maximum too small by so much (in powers of two) stays: weights reach 2^8, and nothing need be rescaled.
inline constexpr float kMaximumSlack = 8;

// Softmax of one query row over one block, of which entries [first, last) are visible. Leaves weights and a new state. Scales of
// V codes go into the weights, once per entry instead of per element, and those stand where the scores were: code_weights is a
// loop of its own, since a row's chain of operations would else be too long for the next rows to start beside it.
template <class Kv>
HUNCH_SIMD void fold_softmax(const AttendScratch<Kv>& scratch, int64_t query_row, int in_tile, float scale2, int first, int last,
    const float* value_scales, float value_unit, float* state, int padded_dim, const BlockScores* collect, int row, int head) {
  F32 s[kKeyTiles];
#pragma GCC unroll 4
  for (int t = 0; t < kKeyTiles; ++t) s[t] = load(scratch.scores + in_tile * kBlockLen + t * kLanes);
  F32 visible[kKeyTiles], factors[kKeyTiles];
#pragma GCC unroll 4
  for (int t = 0; t < kKeyTiles; ++t) {
    visible[t] = s[t];
    if constexpr (Kv::kCodes) factors[t] = load(value_scales + t * kLanes);
  }
  if (first != 0 || last != kBlockLen) {
    const F32 never = set1(-kInf);
#pragma GCC unroll 4
    for (int t = 0; t < kKeyTiles; ++t) {
      const uint32_t seen = bits(first_lanes(last - t * kLanes)) & ~bits(first_lanes(first - t * kLanes));
      visible[t] = select(mask_of(seen), s[t], never);
      if constexpr (Kv::kCodes) factors[t] = select(mask_of(seen), factors[t], zero());  // may be NaN
    }
  }
  float* lane_sums = scratch.lane_sums + query_row * kLanes;
  F32 sums = load(lane_sums);
  float m = scratch.maximum[query_row];
  const F32 block_max = max(max(visible[0], visible[1]), max(visible[2], visible[3]));
  const bool grows = !none_of(less(set1(m + kMaximumSlack / scale2), block_max));
  if (grows) {  // seldom after the first block: one rescale of everything so far
    const float grown = max_of(block_max);
    const F32 factor = exp2_nonpositive(set1(m * scale2 - grown * scale2));
    if (m != -kInf) {
      sums = sums * factor;
      for (int d = 0; d < padded_dim; d += kLanes) store(state + d, load(state + d) * factor);
    }
    scratch.maximum[query_row] = m = grown;
  }
  const F32 c = set1(scale2), offset = set1(-(m * scale2));
  F32 p[kKeyTiles];
#pragma GCC unroll 4
  for (int t = 0; t < kKeyTiles; ++t) p[t] = exp2_nonpositive(fma(visible[t], c, offset));
  store(lane_sums, sums + ((p[0] + p[1]) + (p[2] + p[3])));
  if constexpr (Kv::kCodes) {
#pragma GCC unroll 4
    for (int t = 0; t < kKeyTiles; ++t) store(scratch.scores + in_tile * kBlockLen + t * kLanes, p[t] * factors[t]);
  } else if constexpr (Kv::kUnit != 0) {
    const F32 unit = set1(value_unit);
#pragma GCC unroll 4
    for (int t = 0; t < kKeyTiles; t += 2)
      Kv::put(scratch.weights + in_tile * kBlockLen + t * kLanes, p[t] * unit, p[t + 1] * unit);
  } else {
#pragma GCC unroll 4
    for (int t = 0; t < kKeyTiles; t += 2) Kv::put(scratch.weights + in_tile * kBlockLen + t * kLanes, p[t], p[t + 1]);
  }

  if (!collect || !collect->sink->row_used[row]) return;
  F32 metric[kKeyTiles];
  if (collect->sink->metric == 1) {
    const F32 scale = set1(scale2 * kLn2);
#pragma GCC unroll 4
    for (int t = 0; t < kKeyTiles; ++t) metric[t] = s[t] * scale;
  } else {
    // exp(s - lse) = p exp(m - lse): the second factor changes only with the maximum.
    const float lse = lse_of(*collect->sink, row, head);
    float& factor = scratch.score_factor[query_row];
    if (grows) {
      alignas(64) float lanes[kLanes];
      store(lanes, exp(set1(m * scale2 * kLn2 - lse)));
      factor = lanes[0];
    }
    if (factor < 1e6f) {
#pragma GCC unroll 4
      for (int t = 0; t < kKeyTiles; ++t) metric[t] = min(set1(1.0f), p[t] * set1(factor));
    } else {  // lse far below the truth: p may have underflowed where the product would not
#pragma GCC unroll 4
      for (int t = 0; t < kKeyTiles; ++t) metric[t] = fresh_weight(s[t], c, lse);
    }
  }
  add_scores(*collect, row, head, metric);
}

inline constexpr int kFoldSteps = 4;  // of Ahead, while a row's softmax is made: else memory would wait for it

// Query rows [begin, end) against one block, kQueryTile at a time; its keys and values are read as As.
template <class Kv, class As>
void attend_rows(const AttendItem& item, const AttendScratch<Kv>& scratch, const std::byte* keys, const std::byte* values,
    const std::byte* next, int64_t block_first, bool whole, int begin, int end, float* states, const BlockScores* collect) {
  const int padded_dim = item.keys.padded_dim, group = item.rows.group;
  const int64_t stride = state_len(padded_dim);
  const float* value_scales = nullptr;
  if constexpr (Kv::kCodes) value_scales = scales_of<Kv>(values, padded_dim);
  const float scale2 = item.rows.scale * kLog2e;
  const int steps = block_steps<As>(end - begin, padded_dim, As::kKeyStep) + (end - begin) * kFoldSteps +
      block_steps<As>(end - begin, padded_dim, As::kPerStep);
  Ahead ahead = Ahead::over(keys, next, item.keys.chunk_bytes, steps);
  int row = begin / group, head = 0;  // begin is the first head of a row
  for (int at = begin; at < end; at += kQueryTile) {
    const int count = end - at < kQueryTile ? end - at : kQueryTile;
    score_queries<Kv, As>(scratch, keys, padded_dim, at, count, ahead);
    int firsts[kQueryTile], lasts[kQueryTile];
    for (int i = 0; i < count; ++i) {
      firsts[i] = 0, lasts[i] = kBlockLen;
      if (!whole) {
        const int64_t first = first_of(item.rows, row) - block_first, last = end_of(item.rows, row) - block_first;
        if (first > 0) firsts[i] = int(first);
        if (last < kBlockLen) lasts[i] = int(last);
      }
      fold_softmax<Kv>(scratch, at + i, i, scale2, firsts[i], lasts[i], value_scales, Kv::kUnit * item.keys.scale.v,
          states + (at + i) * stride, padded_dim, collect, row, head);
      if (++head == group) head = 0, ++row;
      for (int step = 0; step < kFoldSteps; ++step) ahead.step();
      ahead = ahead.handed_on();
    }
    if constexpr (Kv::kCodes)
      for (int i = 0; i < count; ++i)
        scratch.units[i] = code_weights<Kv>(scratch.scores + i * kBlockLen, scratch.weights + i * kBlockLen);
    for (int i = 0; i < count;) {  // rows with the same entries together
      int same = i + 1;
      while (same < count && firsts[same] == firsts[i] && lasts[same] == lasts[i]) ++same;
      const typename Kv::Factor* weights = scratch.weights + i * kBlockLen;
      float* row_states = states + (at + i) * stride;
      if constexpr (Kv::kCodes)
        value_code_rows<Kv>(
            values, padded_dim, weights, scratch.units + i, same - i, firsts[i], lasts[i], row_states, stride, ahead);
      else value_rows<As>(values, padded_dim, weights, same - i, firsts[i], lasts[i], row_states, stride, ahead);
      i = same;
    }
  }
}

// A block of FP8 that several tiles of rows read is widened for all of them, once; the products are the same.
template <class Kv>
void attend_block(const AttendItem& item, const AttendScratch<Kv>& scratch, const std::byte* chunk, const std::byte* next,
    int64_t block_first, bool whole, int begin, int end, float* states, const BlockScores* collect) {
  if constexpr (Kv::kUnit != 0)
    if (end - begin > kManyRows && item.keys.padded_dim <= kMostWidened) {
      const int lines = 2 * kBlockLen * item.keys.padded_dim / kLanes;
      for (int i = 0; i < lines; ++i) store(scratch.widened + i * kLanes, Kv::read(chunk + i * Kv::kLineBytes));
      const auto* keys = reinterpret_cast<const std::byte*>(scratch.widened);
      return attend_rows<Kv, KvF32>(
          item, scratch, keys, keys + lines / 2 * 64, next, block_first, whole, begin, end, states, collect);
    }
  attend_rows<Kv, Kv>(
      item, scratch, chunk, chunk + item.keys.chunk_bytes / 2, next, block_first, whole, begin, end, states, collect);
}

// Rows from `row` on that go through a block together: each sees some of [first, end) and, where a tree's blocks are copied by
// paths, each is the child of the row before. Returns the row behind the last, `row` itself if it sees nothing.
HUNCH_SIMD int rows_together(const QueryRows& rows, int row, int64_t first, int64_t end, bool by_path) {
  int last = row;
  while (last < rows.num_rows && reads_some(rows, last, first, end) &&
      (!by_path || last == row || parent_of(rows, last) == rows.tree_row + last - 1))
    ++last;
  return last;
}

template <class Kv>
void attend(const AttendItem& item) {
  const QueryRows& rows = item.rows;
  const int padded_dim = item.keys.padded_dim, group = rows.group, query_rows = rows.num_rows * group;
  const int64_t stride = state_len(padded_dim);
  const AttendScratch<Kv> scratch(item.scratch, query_rows, padded_dim);
  prepare_queries<Kv>(rows, item.keys, scratch.q);
  PathBlocks<Kv> paths(item, scratch.path_chunks);
  int64_t first = first_of(rows, 0), end = end_of(rows, 0);  // of all rows
  for (int row = 1; row < rows.num_rows; ++row) {
    first = first_of(rows, row) < first ? first_of(rows, row) : first;
    end = end_of(rows, row) > end ? end_of(rows, row) : end;
  }
  for (int64_t split = item.first_split; split < item.end_split; ++split) {
    const int64_t split_first = split * kSplitEntries, split_end = split_first + kSplitEntries;
    const auto sees_split = [&](int row) { return reads_some(rows, row, split_first, split_end); };
    float* states = item.partial ? item.partial + (split - item.first_split) * item.partial_split_stride : scratch.states;
    for (int row = 0; row < rows.num_rows; ++row) {
      if (!sees_split(row)) continue;
      for (int i = row * group; i < (row + 1) * group; ++i) {
        for (int d = 0; d < padded_dim; d += kLanes) store(states + i * stride + d, zero());
        store(scratch.lane_sums + i * kLanes, zero());
        scratch.maximum[i] = -kInf;
        scratch.score_factor[i] = 0;
      }
    }

    int64_t block = (first > split_first ? first : split_first) / kBlockLen;
    const int64_t end_block = ((end < split_end ? end : split_end) + kBlockLen - 1) / kBlockLen;
    for (; block < end_block; ++block) {
      const int64_t block_first = block * kBlockLen, block_end = block_first + kBlockLen;
      const bool by_path = paths.copies(block);
      BlockScores scores{&item.scores, group, scratch.score_row, scratch.score_total, block_first - split_first, block_first};
      const bool collect = item.scores.metric != 0 && block_first < item.scores.prefix_len;
      if (collect) begin_scores(scores);
      const std::byte* next = block + 1 < end_block ? chunk_at(item.keys, block + 1) : nullptr;
      for (int from = 0; from < rows.num_rows;) {
        const int to = rows_together(rows, from, block_first, block_end, by_path);
        if (to == from) {
          ++from;
          continue;
        }
        bool whole = true;
        for (int row = from; row < to; ++row)
          whole = whole && first_of(rows, row) <= block_first && end_of(rows, row) >= block_end;
        const std::byte* chunk = by_path ? paths.chunk_of(block, to - 1) : chunk_at(item.keys, block);
        attend_block<Kv>(
            item, scratch, chunk, next, block_first, whole, from * group, to * group, states, collect ? &scores : nullptr);
        from = to;
      }
      if (collect) end_scores(scores);
    }

    const float scale2 = rows.scale * kLog2e;
    for (int row = 0; row < rows.num_rows; ++row) {
      if (!sees_split(row)) continue;
      for (int head = 0; head < group; ++head) {
        const int i = row * group + head;
        float* state = states + i * stride;
        state[padded_dim] = scratch.maximum[i] * scale2;
        state[padded_dim + 1] = sum(load(scratch.lane_sums + i * kLanes));
        if (item.partial) continue;
        float* total = scratch.totals + i * stride;
        if (split == first_of(rows, row) / kSplitEntries)
          for (int64_t d = 0; d < stride; d += kLanes) store(total + d, load(state + d));
        else fold_state(total, state, padded_dim);
        if (split == (end_of(rows, row) - 1) / kSplitEntries) write_row(item, row, head, total);
      }
    }
  }
  if (item.partial) return;
  for (int row = 0; row < rows.num_rows; ++row)
    if (reads_nothing(rows, row)) write_nothing(item, row);
}

static void merge(const AttendItem& item) {
  const QueryRows& rows = item.rows;
  const int padded_dim = item.keys.padded_dim;
  const int64_t stride = state_len(padded_dim);
  for (int row = 0; row < rows.num_rows; ++row) {
    if (reads_nothing(rows, row)) {
      write_nothing(item, row);
      continue;
    }
    const int64_t first = first_of(rows, row) / kSplitEntries, end = (end_of(rows, row) - 1) / kSplitEntries + 1;
    for (int head = 0; head < rows.group; ++head) {
      float* state = item.partial + (row * rows.group + head) * stride;
      float* total = state + (first - item.first_split) * item.partial_split_stride;
      for (int64_t split = first + 1; split < end; ++split)
        fold_state(total, state + (split - item.first_split) * item.partial_split_stride, padded_dim);
      write_row(item, row, head, total);
    }
  }
}

// Scores by K alone; rows not used are skipped where a whole tile is.
template <class Kv>
void score(const AttendItem& item) {
  const QueryRows& rows = item.rows;
  const int padded_dim = item.keys.padded_dim, group = rows.group, query_rows = rows.num_rows * group;
  const AttendScratch<Kv> scratch(item.scratch, query_rows, padded_dim);
  prepare_queries<Kv>(rows, item.keys, scratch.q);
  const F32 scale = set1(rows.scale), scale2 = set1(rows.scale * kLog2e);
  const int64_t first_block = item.first_split * kSplitEntries / kBlockLen;
  int64_t end_block = item.end_split * kSplitEntries / kBlockLen;
  const int64_t prefix_blocks = (item.scores.prefix_len + kBlockLen - 1) / kBlockLen;
  end_block = end_block < prefix_blocks ? end_block : prefix_blocks;
  for (int64_t block = first_block; block < end_block; ++block) {
    const std::byte* chunk = chunk_at(item.keys, block);
    const BlockScores scores{
        &item.scores, group, scratch.score_row, scratch.score_total, block * kBlockLen % kSplitEntries, block * kBlockLen};
    begin_scores(scores);
    const std::byte* next = block + 1 < end_block ? chunk_at(item.keys, block + 1) : nullptr;
    Ahead ahead = Ahead::over(chunk, next, item.keys.chunk_bytes / 2, block_steps<Kv>(query_rows, padded_dim, Kv::kKeyStep));
    int row = 0, head = 0;
    for (int at = 0; at < query_rows; at += kQueryTile) {
      const int count = query_rows - at < kQueryTile ? query_rows - at : kQueryTile;
      bool used = false;
      for (int r = at / group; r <= (at + count - 1) / group; ++r) used = used || item.scores.row_used[r];
      if (used) score_queries<Kv>(scratch, chunk, padded_dim, at, count, ahead);
      for (int i = 0; i < count; ++i) {
        if (item.scores.row_used[row]) {
          F32 metric[kKeyTiles];
          for (int t = 0; t < kKeyTiles; ++t) {
            const F32 s = load(scratch.scores + i * kBlockLen + t * kLanes);
            metric[t] = item.scores.metric == 1 ? s * scale : fresh_weight(s, scale2, lse_of(item.scores, row, head));
          }
          add_scores(scores, row, head, metric);
        }
        if (++head == group) head = 0, ++row;
      }
    }
    end_scores(scores);
  }
}

template <class Kv>
static constexpr void add_type(AttentionKernels& table, DType type, void (*store)(const StoreItem&)) {
  table.attend[int(type)] = attend<Kv>, table.score[int(type)] = score<Kv>, table.store[int(type)] = store;
}
static constexpr AttentionKernels attention_kernels() {
  AttentionKernels table;
  add_type<KvF32>(table, DType::F32, store_rows<RowF32>);
  add_type<KvF16>(table, DType::F16, store_rows<RowF16>);
  add_type<KvBf16>(table, DType::BF16, store_rows<RowBf16>);
  add_type<KvQ8>(table, DType::Q8_0, store_code_rows<KvQ8>);
  add_type<KvI16>(table, DType::I16, store_code_rows<KvI16>);
  add_type<KvF8>(table, DType::F8_E4M3, store_f8_rows);
  table.merge = merge;
  table.combine_rows = combine_rows;
  table.preferred = HUNCH_LEVEL >= 4 ? DType::BF16 : HUNCH_LEVEL == 3 ? DType::I16 : DType::F16;
  return table;
}

}
