// Natively trained sparse attention of the rows of one item: contract in ops/nsa.h, layout in kv_store.h, reasons in docs/nsa.md.
// Block by block, the rows that own it together; no row's operations depend on another's.
//
// Both halves do three things: logits of every block into a row per query, one softmax over that row, weights times values. As
// weights are final before any value is read, the branch's gate goes into them, an entry's weights in window and chosen blocks
// are added first, and all branches share one accumulator.
#pragma once

namespace hunch::HUNCH_ISA {

template <class Kv>
struct NsaScratch {
  typename Kv::Query* q;
  float *sums, *logits, *shares;  // [query row][padded_dim], [query row][stride], [query row][2]
  typename Kv::Factor* weights;   // [kQueryTile][64]
  int32_t* count;                 // [row] chosen blocks so far
  std::byte* paths;
  int64_t stride;

  NsaScratch(const NsaItem& item) : stride(nsa_logit_stride(item)) {
    const int64_t query_rows = int64_t(item.query.num_rows) * item.query.group;
    std::byte* at = item.scratch;
    weights = reinterpret_cast<typename Kv::Factor*>(AttendScratch<Kv>::take(at, kQueryTile * kBlockLen));
    shares = AttendScratch<Kv>::take(at, (2 * query_rows + 15) / 16 * 16);
    q = reinterpret_cast<typename Kv::Query*>(AttendScratch<Kv>::take(at, query_rows * item.keys.padded_dim));
    sums = AttendScratch<Kv>::take(at, query_rows * item.keys.padded_dim);
    logits = AttendScratch<Kv>::take(at, query_rows * stride);
    count = reinterpret_cast<int32_t*>(AttendScratch<Kv>::take(at, kNsaRows));
    paths = at;
  }
};

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
  const F32 never = set1(-kInf);
  const int64_t vectors = (n + kLanes - 1) / kLanes, whole = vectors / 4 * 4;
  if (n % kLanes) {
    float* last = logits + (vectors - 1) * kLanes;
    store(last, select(first_lanes(int(n % kLanes)), load(last), never));
  }
  F32 most[4] = {never, never, never, never};
  for (int64_t i = 0; i < whole; i += 4)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) most[j] = max(load(logits + (i + j) * kLanes), most[j]);
  for (int64_t i = whole; i < vectors; ++i) most[0] = max(load(logits + i * kLanes), most[0]);
  const float greatest = max_of(max(max(most[0], most[1]), max(most[2], most[3])));
  const F32 c = set1(scale2), offset = set1(-(greatest * scale2));
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

// Steps of a kernel over a block that the rows of `mask` read, about: for NsaAhead.
template <class Kv>
HUNCH_SIMD int nsa_steps(const NsaItem& item, uint64_t mask) {
  return block_steps<Kv>(__builtin_popcountll(mask) * item.query.group, item.keys.padded_dim, Kv::kPerStep);
}

// Logits of the rows `list` in W tiles of `keys`; of a row's first head they go to to(row), of the next ones a stride behind.
template <class Kv, int W, class To>
HUNCH_SIMD void nsa_score_list(const NsaScratch<Kv>& scratch, const NsaItem& item, const int* list, int count,
    const std::byte* keys, NsaAhead& ahead, To to) {
  const int dim = item.keys.padded_dim, group = item.query.group;
  const typename Kv::Query* q[kQueryTile] = {};
  float* out[kQueryTile] = {};
  int held = 0;
  for (int i = 0; i < count; ++i) {
    const typename Kv::Query* query = scratch.q + int64_t(list[i]) * group * dim;
    float* at = to(list[i]);
    for (int head = 0; head < group; ++head, query += dim, at += scratch.stride) {
      if (held == kQueryTile) {
        nsa_score_rows<Kv, W>(keys, dim, q, out, held, ahead);
        held = 0;
      }
      q[held] = query, out[held++] = at;
    }
  }
  nsa_score_rows<Kv, W>(keys, dim, q, out, held, ahead);
}

// Adds a block's values to the rows `list`. range(row, first, end): its entries in the page; weigh(row, query row, to): 64
// factors.
template <class Kv, class Range, class Weigh>
HUNCH_SIMD void nsa_value_list(const NsaScratch<Kv>& scratch, const NsaItem& item, const int* list, int count,
    const std::byte* values, NsaAhead& ahead, Range range, Weigh weigh) {
  const int dim = item.keys.padded_dim, group = item.query.group;
  float* states[kQueryTile] = {};
  int held = 0, first = 0, last = 0;
  for (int i = 0; i < count; ++i) {
    int begin = 0, end = 0;
    range(list[i], begin, end);
    for (int head = 0; head < group; ++head) {
      if (held == kQueryTile || (held > 0 && (begin != first || end != last))) {
        nsa_value_rows<Kv>(values, dim, scratch.weights, held, first, last, states, ahead);
        held = 0;
      }
      first = begin, last = end;
      const int64_t at = int64_t(list[i]) * group + head;
      weigh(list[i], at, scratch.weights + held * kBlockLen);
      states[held++] = scratch.sums + at * dim;
    }
  }
  nsa_value_rows<Kv>(values, dim, scratch.weights, held, first, last, states, ahead);
}

// Compressed rows: their logits, the softmax of each query row, importance, and the first part of the result.
template <class Kv>
void nsa_route(const NsaItem& item) {
  const NsaScratch<Kv> scratch(item);
  const int dim = item.keys.padded_dim, group = item.query.group, rows = item.query.num_rows;
  const size_t half = item.rows.chunk_bytes / 2;
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
  // Asked for meanwhile: K and V of the next page; later, blocks of the window.
  const auto after = [&](int64_t page, uint64_t mask) {
    const bool is_there = (page + 1) * kBlockLen < most && page + 1 < item.num_row_pages;
    return NsaAhead::over(
        item.scratch, is_there ? chunk_at(item.rows, page + 1) : nullptr, half, half, nsa_steps<Kv>(item, mask));
  };
  const auto of_window = [&](int64_t page, uint64_t mask) {
    const int64_t first = int64_t(item.query.last[0]) + 1 - item.window, at = (first > 0 ? first / kBlockLen : 0) + page;
    const bool is_there = at * kBlockLen <= item.query.last[0];
    return NsaAhead::over(item.scratch, is_there ? chunk_at(item.keys, at) : nullptr, half, half, nsa_steps<Kv>(item, mask));
  };
  for (int64_t page = 0; page * kBlockLen < most; ++page) {
    const uint64_t mask = readers(page);
    NsaAhead ahead = after(page, mask);
    each_group<Kv>(item, item.rows, paths, page, mask, [&](const int* list, int count, const std::byte* chunk) {
      nsa_score_list<Kv, kKeyTiles>(scratch, item, list, count, chunk, ahead,
          [&](int row) { return scratch.logits + int64_t(row) * group * scratch.stride + page * kBlockLen; });
    });
  }
  const float scale2 = item.query.scale * kLog2e;
  for (int row = 0; row < rows; ++row) {
    const int64_t seen = item.visible[row];
    float *logits = scratch.logits + int64_t(row) * group * scratch.stride, *shares = scratch.shares + int64_t(row) * group * 2;
    for (int head = 0; head < group; ++head) {
      shares[2 * head] = nsa_softmax(logits + head * scratch.stride, seen, scale2);
      shares[2 * head + 1] = nsa_gate(item, row, head, 0);
    }
    if (!item.importance) continue;
    float* importance = item.importance + row * item.importance_stride;
    for (int64_t i = 0; i < seen; i += kLanes) {
      F32 sum = zero();
      for (int head = 0; head < group; ++head) sum = sum + load(logits + head * scratch.stride + i) * set1(shares[2 * head]);
      store(importance + i, sum);
    }
  }
  if (!item.out) return;
  for (int64_t page = 0; page * kBlockLen < most; ++page) {
    const uint64_t mask = readers(page);
    NsaAhead ahead = of_window(page, mask);
    each_group<Kv>(item, item.rows, paths, page, mask, [&](const int* list, int count, const std::byte* chunk) {
      nsa_value_list<Kv>(
          scratch, item, list, count, chunk + half, ahead,
          [&](int row, int&, int& end) {
            const int64_t left = item.visible[row] - page * kBlockLen;
            end = left < kBlockLen ? int(left) : kBlockLen;
          },
          [&](int, int64_t at, typename Kv::Factor* to) {
            const float* from = scratch.logits + at * scratch.stride + page * kBlockLen;
            const F32 share = set1(scratch.shares[2 * at]), gate = set1(scratch.shares[2 * at + 1]);
#pragma GCC unroll 4
            for (int t = 0; t < kKeyTiles; t += 2)
              Kv::put(to + t * kLanes, load(from + t * kLanes) * share * gate, load(from + (t + 1) * kLanes) * share * gate);
          });
    });
  }
}

// Chosen blocks and window, in one go over both: their logits, two softmaxes, the rest of the result.
template <class Kv, int W>
void nsa_read_blocks(const NsaItem& item) {
  constexpr int kLen = W * kLanes;
  const NsaScratch<Kv> scratch(item);
  const int dim = item.keys.padded_dim, group = item.query.group, rows = item.query.num_rows;
  std::byte* memory = scratch.paths;
  NsaPaths<Kv> paths(item.key_paths, item.keys, INT64_MAX, item.query, memory);
  const int64_t near_at = int64_t(item.most_chosen) * kLen;                            // in a query row's logits
  const size_t block_bytes = size_t(W) * size_t(dim / Kv::kPerStep) * Kv::kLineBytes;  // of K as of V
  const F32 never = set1(-kInf);
  const auto near_first = [&](int row) {
    const int64_t first = int64_t(item.query.last[row]) + 1 - item.window;
    return first > 0 ? first : 0;
  };
  // A block as one row sees it: its entries [0, end), those of the window from `first` on; where its logits stand in the row's.
  struct Seen {
    bool chosen, near;
    int first, end;
    int64_t chosen_slot, near_slot;
  };
  const auto seen_by = [&](int row, int i) {
    const int64_t block_first = int64_t(item.blocks[i]) * kLen, left = item.query.last[row] + 1 - block_first,
                  window = near_first(row), begins = window - block_first;
    return Seen{bool(item.chosen[i] >> row & 1), bool(item.near[i] >> row & 1), begins > 0 ? int(begins) : 0,
        left < kLen ? int(left) : kLen, int64_t(scratch.count[row]) * kLen, near_at + block_first - window / kLen * kLen};
  };
  const auto keys_of = [&](int i) {
    const int64_t block = int64_t(item.blocks[i]) * W;
    return chunk_at(item.keys, block / kKeyTiles) + size_t(block % kKeyTiles / W) * block_bytes;
  };
  // fn(block number, its rows and their chunk, what to ask for), once or more for every block.
  const auto each_block = [&](bool ask, auto fn) {
    for (int row = 0; row < rows; ++row) scratch.count[row] = 0;
    for (int i = 0; i < item.num_blocks; ++i) {
      const uint64_t mask = item.chosen[i] | item.near[i];
      const std::byte* next = ask && i + 1 < item.num_blocks ? keys_of(i + 1) : nullptr;
      NsaAhead ahead = NsaAhead::over(item.scratch, next, block_bytes, item.keys.chunk_bytes / 2, nsa_steps<Kv>(item, mask));
      each_group<Kv>(item, item.keys, paths, int64_t(item.blocks[i]) * W / kKeyTiles, mask,
          [&](const int* list, int count, const std::byte* chunk) { fn(i, list, count, chunk, ahead); });
      for (uint64_t chosen = item.chosen[i]; chosen; chosen &= chosen - 1) ++scratch.count[__builtin_ctzll(chosen)];
    }
  };

  each_block(true, [&](int i, const int* list, int count, const std::byte* chunk, NsaAhead& ahead) {
    const auto logits_of = [&](int row) { return scratch.logits + int64_t(row) * group * scratch.stride; };
    nsa_score_list<Kv, W>(
        scratch, item, list, count, chunk + size_t(item.blocks[i] * W % kKeyTiles / W) * block_bytes, ahead, [&](int row) {
          const Seen seen = seen_by(row, i);
          return logits_of(row) + (seen.chosen ? seen.chosen_slot : seen.near_slot);
        });
    for (int n = 0; n < count; ++n) {
      const Seen seen = seen_by(list[n], i);
      if (seen.end == kLen && (seen.chosen ? !seen.near : seen.first == 0)) continue;
      float* logits = logits_of(list[n]);
      for (int head = 0; head < group; ++head, logits += scratch.stride)
#pragma GCC unroll 4
        for (int t = 0; t < W; ++t) {
          const F32 s = load(logits + (seen.chosen ? seen.chosen_slot : seen.near_slot) + t * kLanes);
          const uint32_t all = bits(first_lanes(seen.end - t * kLanes)),
                         inside = all & ~bits(first_lanes(seen.first - t * kLanes));
          if (seen.chosen) store(logits + seen.chosen_slot + t * kLanes, select(mask_of(all), s, never));
          if (seen.near) store(logits + seen.near_slot + t * kLanes, select(mask_of(inside), s, never));
        }
    }
  });

  const float scale2 = item.query.scale * kLog2e;
  for (int row = 0; row < rows; ++row)
    for (int head = 0; head < group; ++head) {
      const int64_t at = int64_t(row) * group + head;
      float *logits = scratch.logits + at * scratch.stride, *shares = scratch.shares + 2 * at;
      const int64_t near_len = (item.query.last[row] / kLen - near_first(row) / kLen + 1) * kLen;
      shares[0] = nsa_softmax(logits, int64_t(scratch.count[row]) * kLen, scale2) * nsa_gate(item, row, head, 1);
      if (item.window > 0) shares[1] = nsa_softmax(logits + near_at, near_len, scale2) * nsa_gate(item, row, head, 2);
    }

  each_block(false, [&](int i, const int* list, int count, const std::byte* chunk, NsaAhead& ahead) {
    const int offset = item.blocks[i] * W % kKeyTiles * kLanes;
    Seen seen{};
    nsa_value_list<Kv>(
        scratch, item, list, count, chunk + item.keys.chunk_bytes / 2, ahead,
        [&](int row, int& begin, int& end) {
          seen = seen_by(row, i);
          begin = offset + (seen.chosen ? 0 : seen.first), end = offset + seen.end;
        },
        [&](int, int64_t at, typename Kv::Factor* to) {
          const float* logits = scratch.logits + at * scratch.stride;
          const F32 chosen = set1(scratch.shares[2 * at]), near = set1(scratch.shares[2 * at + 1]);
          F32 w[W];
#pragma GCC unroll 4
          for (int t = 0; t < W; ++t) {
            w[t] = zero();
            if (seen.chosen) w[t] = load(logits + seen.chosen_slot + t * kLanes) * chosen;
            if (seen.near) w[t] = w[t] + load(logits + seen.near_slot + t * kLanes) * near;
          }
          if constexpr (W == 1) {  // factors go in pairs of tiles: the other one is not read
            const bool high = offset / kLanes % 2;
            Kv::put(to + offset / 32 * 32, high ? zero() : w[0], high ? w[0] : zero());
          } else {
#pragma GCC unroll 4
            for (int t = 0; t < W; t += 2) Kv::put(to + offset + t * kLanes, w[t], w[t + 1]);
          }
        });
  });

  for (int row = 0; row < rows; ++row)
    for (int head = 0; head < group; ++head) {
      const float* from = scratch.sums + (int64_t(row) * group + head) * dim;
      float* to = item.out + row * item.out_row_stride + head * item.out_head_stride;
      for (int d = 0; d < item.keys.head_dim; d += kLanes) store_first(to + d, load(from + d), item.keys.head_dim - d);
    }
}

template <class Kv>
void nsa_read(const NsaItem& item) {
  if (item.block_len == 16) nsa_read_blocks<Kv, 1>(item);
  else if (item.block_len == 32) nsa_read_blocks<Kv, 2>(item);
  else nsa_read_blocks<Kv, 4>(item);
}

template <class Kv>
static constexpr void add_type(NsaKernels& table, DType type) {
  table.route[int(type)] = nsa_route<Kv>, table.read[int(type)] = nsa_read<Kv>;
}
static constexpr NsaKernels nsa_kernels() {
  NsaKernels table;
  add_type<KvF32>(table, DType::F32);
  add_type<KvF16>(table, DType::F16);
  add_type<KvBf16>(table, DType::BF16);
  return table;
}

}
