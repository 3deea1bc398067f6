// What natively trained sparse attention means: the paper's double sum, forced blocks and ties, compressed rows against their
// formula, the edges of the three branches.

#include "backend/cpu/nsa_fixture.h"

namespace hunch {
namespace {

// Equation 9 of the paper with indices from 0: block j takes P[r j + m + u - (c - 1)] for m < c, u < r.
TEST(NsaScores, AreThePapersDoubleSum) {
  for (const auto& [len, stride, block] :
      {std::array{32, 16, 64}, {8, 4, 16}, {16, 16, 16}, {64, 8, 16}, {4, 1, 32}, {16, 16, 64}}) {
    const NsaShape s = nsa_std(len, stride, block, 16, 512);
    const int64_t r = block / stride, c = len / stride, rows = 5 * r + 3, blocks = 7;
    const auto p = random_floats(rows, 5);
    Floats scores(blocks, -1.0f);
    score_blocks(s, p.data(), rows, blocks, scores.data());
    for (int64_t j = 0; j < blocks; ++j) {
      double sum = 0;
      for (int64_t m = 0; m < c; ++m)
        for (int64_t u = 0; u < r; ++u)
          if (const int64_t i = r * j + m + u - (c - 1); i >= 0 && i < rows) sum += double(p[i]);
      EXPECT_NEAR(scores[j], sum, 1e-4) << len << " " << stride << " " << block << " block " << j;
    }
  }
}

Ints chosen_of(const NsaShape& s, int64_t position, const Floats& scores) {
  Ints out(s.sel_count, -77);
  choose_blocks(s, position, scores.data(), out.data());
  return out;
}

TEST(NsaChoice, TakesForcedBlocksFirstThenScoresAndOfEqualOnesTheLower) {
  const NsaShape s = nsa_std(8, 4, 16, 5, 24);  // first 1, last 2
  const Floats flat(10, 0.0f);
  EXPECT_EQ(chosen_of(s, 9 * 16 + 3, flat), (Ints{0, 1, 2, 8, 9}));
  EXPECT_EQ(chosen_of(s, 9 * 16 + 15, {9, 1, 3, 2, 3, 2, 3, 1, 0, 0}), (Ints{0, 2, 4, 8, 9}));
  EXPECT_EQ(chosen_of(s, 9 * 16, {0, 1, 1, 1, 1, 1, 1, 5, 9, 9}), (Ints{0, 1, 7, 8, 9}));
  EXPECT_EQ(chosen_of(s, 8 * 16 + 2, {0, 0, 0, 0, 0, 0, 0.5f, 0, 0, 99}), (Ints{0, 1, 6, 7, 8}));  // none behind
  EXPECT_EQ(chosen_of(s, 40, {0, 0, 0}), (Ints{0, 1, 2, -1, -1}));
  EXPECT_EQ(chosen_of(s, 0, {0}), (Ints{0, -1, -1, -1, -1}));
  NsaShape only_forced = s;
  only_forced.sel_count = 3;
  EXPECT_EQ(chosen_of(only_forced, 9 * 16, {0, 9, 9, 9, 9, 9, 9, 9, 9, 9}), (Ints{0, 8, 9}));
  EXPECT_EQ(chosen_of(nsa_fla(16, 2, 0), 5 * 16, {1, 2, 5, 4, 3, 0}), (Ints{2, 5}));  // its own only
}

// Of many blocks too: the first of all others in order of scores, with few values, so that many are equal.
TEST(NsaChoice, IsThatOfSortingForAnyNumberOfBlocks) {
  std::mt19937 random(8);
  for (const int count : {4, 16, 40})
    for (const int64_t own : {3, 20, 130, 131, 260, 700}) {
      const NsaShape s = nsa_std(8, 4, 16, count, 24);
      Floats scores(size_t(own) + 1);
      for (float& x : scores) x = float(random() % 50) / (random() % 2 ? 1.0f : 64.0f);
      Ints expected(scores.size());
      std::iota(expected.begin(), expected.end(), 0);
      const auto forced = [&](int32_t j) { return j < s.init_blocks || own - j < s.local_blocks; };
      std::ranges::stable_sort(expected,
          [&](int32_t a, int32_t b) { return forced(a) != forced(b) ? forced(a) : !forced(a) && scores[a] > scores[b]; });
      expected.resize(std::min(expected.size(), size_t(count)));
      std::ranges::sort(expected);
      expected.resize(count, -1);
      EXPECT_EQ(chosen_of(s, own * 16 + 5, scores), expected) << count << " of " << own;
    }
}

// Rotates (or back) as a model does.
Floats rotated(Floats x, double position, const Floats& inv_freq, double magnitude) {
  const size_t half = inv_freq.size();
  for (size_t i = 0; i < half; ++i) {
    const double angle = position * double(inv_freq[i]), a = double(x[i]), b = double(x[i + half]);
    x[i] = float(magnitude * (a * std::cos(angle) - b * std::sin(angle)));
    x[i + half] = float(magnitude * (b * std::cos(angle) + a * std::sin(angle)));
  }
  return x;
}

// The compressed row by its formula from keys as they were before rotation, which were rotated and stored.
TEST(NsaCompressor, MakesTheRowsOfTheFormula) {
  ReferenceBackend backend;
  const KvShape shape{DType::F32, 2, 1, 8};
  const size_t dim = 8, heads = 2;
  for (const NsaShape& form : {nsa_std(8, 4, 16, 4, 0), nsa_std(16, 8, 16, 4, 0, NsaShape::Kind::Linear), nsa_fla(16, 3, 0)}) {
    const int64_t len = 70;
    NsaCase c(backend, form, shape, len);
    const auto plain = random_floats(len * heads * dim, 77), v = random_floats(len * heads * dim, 78);
    Floats k;
    const double magnitude = double(c.values.layer().magnitude);
    for (int64_t t = 0; t < len; ++t)
      for (size_t h = 0; h < heads; ++h) {
        const auto row = part_of(plain, (size_t(t) * heads + h) * dim, dim);
        append(k, rotated(row, double(t), c.values.inv_freq, magnitude));
      }
    backend.store_kv({0, view(k, len, heads, dim), view(v, len, heads, dim), c.kv.ref(), 0});
    c.compress(0, len);
    const size_t length = form.cmp_len;
    for (int64_t i = 0; i < form.rows_of(len); ++i)
      for (size_t h = 0; h < heads; ++h) {
        Floats key(dim, 0), value(dim, 0), got_k(dim), got_v(dim);
        const auto at = [&](const Floats& from, size_t m) {
          return &from[((size_t(i * form.cmp_stride) + m) * heads + h) * dim];
        };
        for (size_t m = 0; m < length; ++m)
          for (size_t d = 0; d < dim; ++d) {
            if (form.kind != NsaShape::Kind::Linear) {
              key[d] += c.values.key[h * length + m] * at(form.rope_before ? k : plain, m)[d];
              value[d] += c.values.value[h * length + m] * at(v, m)[d];
              continue;
            }
            for (size_t e = 0; e < dim; ++e) {
              key[d] += at(plain, m)[e] * c.values.key[((h * length + m) * dim + e) * dim + d];
              value[d] += at(v, m)[e] * c.values.value[((h * length + m) * dim + e) * dim + d];
            }
          }
        for (size_t d = 0; d < dim && !c.values.offset.empty(); ++d) key[d] += c.values.offset[h * dim + d];
        if (!form.rope_before) key = rotated(key, double(i * form.cmp_stride), c.values.inv_freq, magnitude);
        c.rows->read(0, int(h), c.row_pages(), i, got_k.data(), got_v.data());
        EXPECT_LE(distance(got_k, key), 2e-5f) << name_of(form) << " row " << i;
        EXPECT_LE(distance(got_v, value), 2e-5f) << name_of(form) << " row " << i;
      }
  }
}

const KvShape shape{DType::F32, 1, 1, 8};

// One branch alone: the gates of the others are closed.
NsaResult branch(const NsaCase& c, NsaRequest request, int open) {
  for (size_t i = 0; i < request.gates.size(); ++i) request.gates[i] = int(i % 3) == open ? 200.0f : -200.0f;
  return nsa_one(c, request);
}

Floats values_of(const NsaCase& c, int64_t entry) {
  Floats k(c.kv.shape.head_dim), v(k.size());
  c.kv.store->read(0, 0, c.kv.pages(), entry, k.data(), v.data());
  return v;
}

TEST(NsaAttention, HasAWindowThatCountsTheQueryItself) {
  ReferenceBackend backend;
  const NsaCase one(backend, nsa_std(8, 4, 16, 4, 1), shape, 60);
  const NsaRequest request = nsa_request(shape, {59});
  EXPECT_LE(distance(branch(one, request, 2).out, values_of(one, 59)), 1e-6f);
  // Two keys: a mean of both, in which the one before last has a part and the one before that none.
  const NsaCase two(backend, nsa_std(8, 4, 16, 4, 2), shape, 60);
  NsaRequest flat = request;
  std::ranges::fill(flat.q, 0.0f);
  const auto out = branch(two, flat, 2).out, a = values_of(two, 58), b = values_of(two, 59);
  for (size_t d = 0; d < out.size(); ++d) EXPECT_NEAR(out[d], (a[d] + b[d]) / 2, 1e-6f);
}

TEST(NsaAttention, SeesACompressedRowFromItsLastTokenOn) {
  ReferenceBackend backend;
  const NsaCase c(backend, nsa_std(8, 4, 16, 4, 4), shape, 40);
  const auto at = [&](int32_t position) { return branch(c, nsa_request(shape, {position}), 0).out; };
  for (const float x : at(6)) EXPECT_EQ(x, 0);  // none yet, and no NaN
  Floats k(8), first(8);
  c.rows->read(0, 0, c.row_pages(), 0, k.data(), first.data());
  EXPECT_LE(distance(at(7), first), 1e-6f);
  EXPECT_LE(distance(at(10), first), 1e-6f);
  EXPECT_GT(distance(at(11), first), 1e-3f);
}

TEST(NsaAttention, ReadsChosenBlocksUpToTheQueryOnly) {
  ReferenceBackend backend;
  const NsaCase c(backend, nsa_std(8, 4, 16, 4, 4), shape, 100);
  NsaRequest request = nsa_request(shape, {83});
  std::ranges::fill(request.q, 0.0f);
  request.given = {1, 5, 6, -1};  // 6 lies behind the query
  std::vector<double> mean(8, 0);
  for (int64_t e = 0; e < 100; ++e)
    if ((e >= 16 && e < 32) || (e >= 80 && e <= 83))
      for (size_t d = 0; d < 8; ++d) mean[d] += double(values_of(c, e)[d]) / 20;
  const auto out = branch(c, request, 1).out;
  for (size_t d = 0; d < 8; ++d) EXPECT_NEAR(out[d], mean[d], 1e-6);
}

}
}
