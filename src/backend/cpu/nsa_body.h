// Natively trained sparse attention of the rows of one item: contract in ops/nsa.h, layout in kv_store.h, reasons in docs/nsa.md.
// Block by block over what any row reads, the rows that own a block together; of a row's operations none depends on the others.
//
// Both halves do the same three things: logits of every block into a row per query, one softmax over that row, weights times
// values. Since a row's weights are final before any value is read, the gate of the branch goes into them, the window's and the
// chosen blocks' weights of one entry are added first, and all branches share one accumulator.
#pragma once

namespace hunch::HUNCH_ISA {

template <class Kv>
struct NsaScratch {
  typename Kv::Query* q;
  float *sums, *logits, *scores;  // [query row][padded_dim], [query row][stride], [kQueryTile][64]
  typename Kv::Factor* weights;   // [kQueryTile][64]
  int32_t* count;                 // [row] chosen blocks so far
  std::byte* paths;
  int64_t stride;

  NsaScratch(const NsaItem& item) {
    const int64_t query_rows = int64_t(item.query.num_rows) * item.query.group, read = nsa_read_stride(item);
    stride = item.importance_stride > read ? item.importance_stride : read;
    std::byte* at = item.scratch;
    scores = AttendScratch<Kv>::take(at, kQueryTile * kBlockLen);
    weights = reinterpret_cast<typename Kv::Factor*>(AttendScratch<Kv>::take(at, kQueryTile * kBlockLen));
    q = reinterpret_cast<typename Kv::Query*>(AttendScratch<Kv>::take(at, query_rows * item.keys.padded_dim));
    sums = AttendScratch<Kv>::take(at, query_rows * item.keys.padded_dim);
    logits = AttendScratch<Kv>::take(at, query_rows * stride);
    count = reinterpret_cast<int32_t*>(AttendScratch<Kv>::take(at, kNsaRows));
    paths = at;
  }
};

// out[r][entry] = q[r] . k[entry] for W tiles of 16 entries, dimensions ascending.
template <class Kv, int R, int W>
void nsa_scores(const std::byte* keys, int padded_dim, const typename Kv::Query* const* q, float* const* out) {
  constexpr int kPart = W < kWide ? W : kWide;
  const int steps = padded_dim / Kv::kPerStep;
  const size_t tile_bytes = size_t(steps) * Kv::kLineBytes;
  for (int tile = 0; tile < W; tile += kPart) {
    const std::byte* line_at = keys + size_t(tile) * tile_bytes;
    F32 sums[R][kPart];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int t = 0; t < kPart; ++t) sums[r][t] = zero();
    for (int step = 0; step < steps; ++step, line_at += Kv::kLineBytes) {
      typename Kv::Line lines[kPart];
#pragma GCC unroll 8
      for (int t = 0; t < kPart; ++t) lines[t] = Kv::read(line_at + size_t(t) * tile_bytes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const typename Kv::Wide f = Kv::widen(q[r] + step * Kv::kFactorsPerStep);
#pragma GCC unroll 8
        for (int t = 0; t < kPart; ++t) sums[r][t] = Kv::add_product(sums[r][t], lines[t], f);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int t = 0; t < kPart; ++t) store(out[r] + (tile + t) * kLanes, sums[r][t]);
  }
}

template <class Kv, int W>
void nsa_score_rows(const std::byte* keys, int padded_dim, const typename Kv::Query* const* q, float* const* out, int rows) {
  for (; rows >= kRowTile; rows -= kRowTile, q += kRowTile, out += kRowTile)
    nsa_scores<Kv, kRowTile, W>(keys, padded_dim, q, out);
  if constexpr (kRowTile > 2) {
    if (rows == 3) nsa_scores<Kv, 3, W>(keys, padded_dim, q, out);
    if (rows == 2) nsa_scores<Kv, 2, W>(keys, padded_dim, q, out);
  }
  if constexpr (kRowTile > 1)
    if (rows == 1) nsa_scores<Kv, 1, W>(keys, padded_dim, q, out);
}

// sums[r] += weights[r][e] values[e] for the entries e in [first, last) of a block, ascending; 16 V dimensions.
template <class Kv, int R, int V>
void nsa_values(const std::byte* values, int padded_dim, const typename Kv::Factor* weights, int first, int last,
                float* const* states, int at) {
  F32 sums[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sums[r][v] = load(states[r] + at + v * kLanes);
  constexpr int kPer = Kv::kPerStep;
  const size_t step_bytes = size_t(padded_dim / kLanes) * Kv::kLineBytes;
  const int begin = (first + kPer - 1) / kPer, end = last / kPer;
  if (begin * kPer != first)
    value_step<Kv, R, V>(values + (begin - 1) * step_bytes, weights + (begin - 1) * kPer, false, true, sums);
  const std::byte* lines_at = values + begin * step_bytes;
  for (int step = begin; step < end; ++step, lines_at += step_bytes)
    value_step<Kv, R, V>(lines_at, weights + step * kPer, true, true, sums);
  if (end * kPer != last) value_step<Kv, R, V>(values + end * step_bytes, weights + end * kPer, true, false, sums);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(states[r] + at + v * kLanes, sums[r][v]);
}

template <class Kv, int R>
void nsa_values_all_dims(const std::byte* values, int padded_dim, const typename Kv::Factor* weights, int first, int last,
                         float* const* states) {
  int at = 0;
  for (; padded_dim - at >= kWide * kLanes; at += kWide * kLanes, values += kWide * Kv::kLineBytes)
    nsa_values<Kv, R, kWide>(values, padded_dim, weights, first, last, states, at);
  for (; at < padded_dim; at += kLanes, values += Kv::kLineBytes)
    nsa_values<Kv, R, 1>(values, padded_dim, weights, first, last, states, at);
}

template <class Kv>
void nsa_value_rows(const std::byte* values, int padded_dim, const typename Kv::Factor* weights, int rows, int first, int last,
                    float* const* states) {
  for (; rows >= kRowTile; rows -= kRowTile, weights += kRowTile * kBlockLen, states += kRowTile)
    nsa_values_all_dims<Kv, kRowTile>(values, padded_dim, weights, first, last, states);
  if constexpr (kRowTile > 2) {
    if (rows == 3) nsa_values_all_dims<Kv, 3>(values, padded_dim, weights, first, last, states);
    if (rows == 2) nsa_values_all_dims<Kv, 2>(values, padded_dim, weights, first, last, states);
  }
  if constexpr (kRowTile > 1)
    if (rows == 1) nsa_values_all_dims<Kv, 1>(values, padded_dim, weights, first, last, states);
}

// The blocks of a tree that differ from path to path: copies, changed where the next path differs.
template <class Kv>
class NsaPaths {
 public:
  NsaPaths(const NsaPathPlane& plane, const KeyPlane& base, int64_t num_pages, const QueryRows& rows, std::byte*& memory)
      : plane_(plane), base_(base), num_pages_(num_pages), rows_(rows), chunks_(memory) {
    standing_ = reinterpret_cast<int32_t*>(memory + size_t(plane.num_blocks) * base.chunk_bytes);
    memory += size_t(plane.num_blocks) * (base.chunk_bytes + kBlockLen * sizeof(int32_t));
    for (int i = 0; i < plane.num_blocks * kBlockLen; ++i) standing_[i] = -1;
  }
  bool copies(int64_t block) const { return plane_.num_blocks > 0 && block >= plane_.first_block; }

  // The block as `row` and its ancestors see it.
  const std::byte* chunk_of(int64_t block, int row) {
    const int at = int(block - plane_.first_block);
    std::byte* chunk = chunks_ + size_t(at) * base_.chunk_bytes;
    if (!(made_ >> at & 1) && block < num_pages_) __builtin_memcpy(chunk, chunk_at(base_, block), base_.chunk_bytes);
    made_ |= uint64_t(1) << at;
    for (int x = rows_.tree_row + row; x >= 0; x = rows_.parents[x]) {
      const int64_t place = plane_.place[x] - block * kBlockLen;
      if (plane_.place[x] < 0 || place < 0 || place >= kBlockLen || standing_[at * kBlockLen + place] == x) continue;
      const int64_t entry = plane_.first + x;
      copy_entry<Kv>(plane_.from, chunk_at(plane_.from, entry / kBlockLen), int(entry % kBlockLen), chunk, int(place));
      standing_[at * kBlockLen + place] = x;
    }
    return chunk;
  }

 private:
  const NsaPathPlane& plane_;
  const KeyPlane& base_;
  int64_t num_pages_;
  const QueryRows& rows_;
  std::byte* chunks_;
  int32_t* standing_;
  uint64_t made_ = 0;
};

// fn(list of rows, how many, chunk) for the rows of `mask`: all at once, or as many as lie on one path.
template <class Kv, class Fn>
HUNCH_SIMD void each_group(const NsaItem& item, const KeyPlane& plane, NsaPaths<Kv>& paths, int64_t page, uint64_t mask, Fn fn) {
  int list[kNsaRows], count = 0;
  for (; mask; mask &= mask - 1) {
    const int row = __builtin_ctzll(mask);
    const bool goes_on = count > 0 && list[count - 1] == row - 1 && item.query.parents &&
                         item.query.parents[item.query.tree_row + row] == item.query.tree_row + row - 1;
    if (count > 0 && paths.copies(page) && !goes_on) {
      fn(list, count, paths.chunk_of(page, list[count - 1]));
      count = 0;
    }
    list[count++] = row;
  }
  if (count > 0) fn(list, count, paths.copies(page) ? paths.chunk_of(page, list[count - 1]) : chunk_at(plane, page));
}

// logits [0, n) of one query row to weights relative to their greatest, 0 from n to the end of the vector; returns 1 / their sum.
HUNCH_SIMD float nsa_softmax(float* logits, int64_t n, float scale2) {
  if (n == 0) return 0;
  const F32 never = set1(-__builtin_inff());
  F32 greatest = never;
  const int64_t vectors = (n + kLanes - 1) / kLanes;
  for (int64_t i = 0; i < vectors; ++i) {
    F32 s = load(logits + i * kLanes);
    if ((i + 1) * kLanes > n) {
      s = select(first_lanes(int(n - i * kLanes)), s, never);
      store(logits + i * kLanes, s);
    }
    greatest = max(s, greatest);
  }
  const F32 c = set1(scale2), offset = set1(-(max_of(greatest) * scale2));
  F32 sums = zero();
  for (int64_t i = 0; i < vectors; ++i) {
    const F32 p = exp2_nonpositive(fma(load(logits + i * kLanes), c, offset));
    store(logits + i * kLanes, p);
    sums = sums + p;
  }
  return 1.0f / sum(sums);
}

// 1 / (1 + e^-x)
HUNCH_SIMD float nsa_gate(const NsaItem& item, int row, int head, int branch) {
  alignas(64) float lanes[kLanes];
  const float x = item.gates[row * item.gate_stride + 3 * head + branch];
  store(lanes, set1(1.0f) / (set1(1.0f) + exp(set1(-x))));
  return lanes[0];
}

// Weights of one block, 64 floats, as factors.
template <class Kv>
HUNCH_SIMD void put_weights(const float* from, typename Kv::Factor* to) {
#pragma GCC unroll 4
  for (int t = 0; t < kKeyTiles; t += 2) Kv::put(to + t * kLanes, load(from + t * kLanes), load(from + (t + 1) * kLanes));
}

// Compressed rows: their logits, the softmax of each query row, importance, and the first part of the result.
template <class Kv>
void nsa_route(const NsaItem& item) {
  const NsaScratch<Kv> scratch(item);
  const int dim = item.keys.padded_dim, group = item.query.group, rows = item.query.num_rows;
  std::byte* memory = scratch.paths;
  NsaPaths<Kv> paths(item.row_paths, item.rows, item.num_row_pages, item.query, memory);
  prepare_queries<Kv>(item.query, item.keys, scratch.q);
  for (int64_t i = 0; i < int64_t(rows) * group * dim; i += kLanes) store(scratch.sums + i, zero());
  int64_t most = 0;
  for (int row = 0; row < rows; ++row) most = item.visible[row] > most ? item.visible[row] : most;
  const auto readers = [&](int64_t page) {
    uint64_t mask = 0;
    for (int row = 0; row < rows; ++row) mask |= uint64_t(item.visible[row] > page * kBlockLen) << row;
    return mask;
  };
  for (int64_t page = 0; page * kBlockLen < most; ++page)
    each_group<Kv>(item, item.rows, paths, page, readers(page), [&](const int* list, int count, const std::byte* chunk) {
      const typename Kv::Query* q[kQueryTile];
      float* to[kQueryTile];
      int held = 0;
      for (int i = 0; i < count * group; ++i) {
        const int64_t at = int64_t(list[i / group]) * group + i % group;
        q[held] = scratch.q + at * dim, to[held++] = scratch.logits + at * scratch.stride + page * kBlockLen;
        if (held < kQueryTile && i + 1 < count * group) continue;
        nsa_score_rows<Kv, kKeyTiles>(chunk, dim, q, to, held);
        held = 0;
      }
    });
  const float scale2 = item.query.scale * kLog2e;
  for (int row = 0; row < rows; ++row) {
    const int64_t seen = item.visible[row], padded = (seen + kBlockLen - 1) / kBlockLen * kBlockLen;
    float* importance = item.importance + row * item.importance_stride;
    for (int64_t i = 0; i < padded; i += kLanes) store(importance + i, zero());
    for (int head = 0; head < group; ++head) {
      float* logits = scratch.logits + (int64_t(row) * group + head) * scratch.stride;
      const float inverse = nsa_softmax(logits, seen, scale2);
      for (int64_t i = (seen + kLanes - 1) / kLanes * kLanes; i < padded; i += kLanes) store(logits + i, zero());
      const F32 share = set1(inverse), gate = set1(nsa_gate(item, row, head, 0));
      for (int64_t i = 0; i < padded; i += kLanes) {
        const F32 p = load(logits + i) * share;
        store(importance + i, load(importance + i) + p);
        store(logits + i, p * gate);
      }
    }
  }
  for (int64_t page = 0; page * kBlockLen < most; ++page)
    each_group<Kv>(item, item.rows, paths, page, readers(page), [&](const int* list, int count, const std::byte* chunk) {
      float* states[kQueryTile];
      int held = 0, last = 0;
      const auto flush = [&] {
        if (held > 0) nsa_value_rows<Kv>(chunk + item.rows.chunk_bytes / 2, dim, scratch.weights, held, 0, last, states);
        held = 0;
      };
      for (int i = 0; i < count * group; ++i) {
        const int row = list[i / group];
        const int64_t at = int64_t(row) * group + i % group, left = item.visible[row] - page * kBlockLen;
        const int end = left < kBlockLen ? int(left) : kBlockLen;
        if (held == kQueryTile || (held > 0 && end != last)) flush();
        last = end;
        put_weights<Kv>(scratch.logits + at * scratch.stride + page * kBlockLen, scratch.weights + held * kBlockLen);
        states[held++] = scratch.sums + at * dim;
      }
      flush();
    });
}

// Chosen blocks and window, in one go over both: their logits, two softmaxes, the rest of the result.
template <class Kv, int W>
void nsa_read_blocks(const NsaItem& item) {
  constexpr int kLen = W * kLanes;
  const NsaScratch<Kv> scratch(item);
  const int dim = item.keys.padded_dim, group = item.query.group, rows = item.query.num_rows;
  std::byte* memory = scratch.paths;
  NsaPaths<Kv> paths(item.key_paths, item.keys, INT64_MAX, item.query, memory);
  const int64_t near_at = int64_t(item.most_chosen) * kLen;  // in a query row's logits
  const size_t tile_bytes = size_t(dim / Kv::kPerStep) * Kv::kLineBytes;
  const F32 never = set1(-__builtin_inff());
  // Entries of the block that `row` sees: [first, end), of the window or of a chosen block.
  const auto end_in = [&](int row, int64_t block_first) {
    const int64_t end = item.query.last[row] + 1 - block_first;
    return end < kLen ? int(end) : kLen;
  };
  const auto near_first = [&](int row) {
    const int64_t first = int64_t(item.query.last[row]) + 1 - item.window;
    return first > 0 ? first : 0;
  };
  // Where the logits of window entries of a block stand in a query row.
  const auto near_slot = [&](int row, int64_t block) { return near_at + (block - near_first(row) / kLen) * kLen; };

  for (int row = 0; row < rows; ++row) scratch.count[row] = 0;
  for (int i = 0; i < item.num_blocks; ++i) {
    const int64_t block = item.blocks[i], block_first = block * kLen, page = block_first / kBlockLen;
    const size_t tile = size_t(block_first % kBlockLen / kLanes);
    each_group<Kv>(item, item.keys, paths, page, item.chosen[i] | item.near[i],
                   [&](const int* list, int count, const std::byte* chunk) {
                     const typename Kv::Query* q[kQueryTile];
                     float* to[kQueryTile];
                     int from = 0;
                     for (int n = 0; n < count * group; ++n) {
                       const int64_t at = int64_t(list[n / group]) * group + n % group;
                       q[n - from] = scratch.q + at * dim, to[n - from] = scratch.scores + (n - from) * kBlockLen;
                       if (n + 1 - from < kQueryTile && n + 1 < count * group) continue;
                       nsa_score_rows<Kv, W>(chunk + tile * tile_bytes, dim, q, to, n + 1 - from);
                       for (int m = from; m <= n; ++m) {
                         const int row = list[m / group], end = end_in(row, block_first);
                         float* logits = scratch.logits + (int64_t(row) * group + m % group) * scratch.stride;
                         const int64_t first = near_first(row) - block_first;
                         float* chosen = item.chosen[i] >> row & 1 ? logits + int64_t(scratch.count[row]) * kLen : nullptr;
                         float* near = item.near[i] >> row & 1 ? logits + near_slot(row, block) : nullptr;
#pragma GCC unroll 4
                         for (int t = 0; t < W; ++t) {
                           const F32 s = load(to[m - from] + t * kLanes);
                           const uint32_t seen = bits(first_lanes(end - t * kLanes));
                           const uint32_t inside = first > 0 ? seen & ~bits(first_lanes(int(first) - t * kLanes)) : seen;
                           if (chosen) store(chosen + t * kLanes, select(mask_of(seen), s, never));
                           if (near) store(near + t * kLanes, select(mask_of(inside), s, never));
                         }
                       }
                       from = n + 1;
                     }
                   });
    for (uint64_t mask = item.chosen[i]; mask; mask &= mask - 1) ++scratch.count[__builtin_ctzll(mask)];
  }

  const float scale2 = item.query.scale * kLog2e;
  for (int row = 0; row < rows; ++row)
    for (int head = 0; head < group; ++head) {
      float* logits = scratch.logits + (int64_t(row) * group + head) * scratch.stride;
      const auto weigh = [&](float* part, int64_t count, int branch) {
        const F32 share = set1(nsa_softmax(part, count, scale2) * nsa_gate(item, row, head, branch));
        for (int64_t i = 0; i < count; i += kLanes) store(part + i, load(part + i) * share);
      };
      if (scratch.count[row] > 0) weigh(logits, int64_t(scratch.count[row]) * kLen, 1);
      if (item.window > 0) weigh(logits + near_at, near_slot(row, item.query.last[row] / kLen) - near_at + kLen, 2);
    }

  for (int row = 0; row < rows; ++row) scratch.count[row] = 0;
  for (int i = 0; i < item.num_blocks; ++i) {
    const int64_t block = item.blocks[i], block_first = block * kLen, page = block_first / kBlockLen;
    const int offset = int(block_first % kBlockLen);
    each_group<Kv>(item, item.keys, paths, page, item.chosen[i] | item.near[i],
                   [&](const int* list, int count, const std::byte* chunk) {
                     float* states[kQueryTile];
                     int held = 0, first = 0, last = 0;
                     const auto flush = [&] {
                       if (held > 0)
                         nsa_value_rows<Kv>(chunk + item.keys.chunk_bytes / 2, dim, scratch.weights, held, offset + first,
                                            offset + last, states);
                       held = 0;
                     };
                     for (int n = 0; n < count * group; ++n) {
                       const int row = list[n / group], end = end_in(row, block_first);
                       const bool chosen = item.chosen[i] >> row & 1, near = item.near[i] >> row & 1;
                       const int64_t begins = near_first(row) - block_first;
                       const int begin = !chosen && begins > 0 ? int(begins) : 0;
                       if (held == kQueryTile || (held > 0 && (begin != first || end != last))) flush();
                       first = begin, last = end;
                       const int64_t at = int64_t(row) * group + n % group;
                       const float* logits = scratch.logits + at * scratch.stride;
                       float* sum = scratch.scores;
#pragma GCC unroll 4
                       for (int t = 0; t < kKeyTiles; ++t) store(sum + t * kLanes, zero());
#pragma GCC unroll 4
                       for (int t = 0; t < W; ++t) {
                         F32 w = zero();
                         if (chosen) w = load(logits + int64_t(scratch.count[row]) * kLen + t * kLanes);
                         if (near) w = w + load(logits + near_slot(row, block) + t * kLanes);
                         store(sum + offset + t * kLanes, w);
                       }
                       put_weights<Kv>(sum, scratch.weights + held * kBlockLen);
                       states[held++] = scratch.sums + at * dim;
                     }
                     flush();
                   });
    for (uint64_t mask = item.chosen[i]; mask; mask &= mask - 1) ++scratch.count[__builtin_ctzll(mask)];
  }

  for (int row = 0; row < rows; ++row)
    for (int head = 0; head < group; ++head) {
      const float* from = scratch.sums + (int64_t(row) * group + head) * dim;
      float* to = item.out + row * item.out_row_stride + head * item.out_head_stride;
      for (int d = 0; d < item.keys.head_dim; d += kLanes) {
        const int left = item.keys.head_dim - d;
        store_first(to + d, load(from + d), left < kLanes ? left : kLanes);
      }
    }
}

template <class Kv>
void nsa_read(const NsaItem& item) {
  if (item.block_len == 16) nsa_read_blocks<Kv, 1>(item);
  else if (item.block_len == 32) nsa_read_blocks<Kv, 2>(item);
  else nsa_read_blocks<Kv, 4>(item);
}

static NsaKernels nsa_kernels() {
  NsaKernels table;
  table.route[int(DType::F32)] = nsa_route<KvF32>;
  table.route[int(DType::F16)] = nsa_route<KvF16>;
  table.route[int(DType::BF16)] = nsa_route<KvBf16>;
  table.read[int(DType::F32)] = nsa_read<KvF32>;
  table.read[int(DType::F16)] = nsa_read<KvF16>;
  table.read[int(DType::BF16)] = nsa_read<KvBf16>;
  return table;
}

}  // namespace hunch::HUNCH_ISA
