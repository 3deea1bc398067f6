// Attention and scores on the device: the reference's values, and a row's bits alone, in a verify, in a chunk, in a tree.
#include "backend/cuda/attention.h"

#include <set>

#include "backend/cuda/attention_fixture.h"
#include "backend/cuda/commands_fixture.h"

namespace hunch {
namespace {

using namespace test;
using enum DType;

Attended expected(KvPair& kv, const Request& request, bool keys_only = false) {
  return attend(nullptr, nullptr, {&kv}, {request}, 1, keys_only)[0];
}

bool on_tensor_cores(DType t, int dim) { return t != F32 && (dim == 64 || dim == 128); }
// Weights are rounded to 8 or 11 bits, an error of at most 2^-9 or 2^-12 of a mean of values up to 4. Codes of Q8_0 times their
// scale are rounded to 11 bits, values and keys.
float out_tolerance(const KvShape& s) {
  return !on_tensor_cores(s.dtype, s.head_dim) ? 5e-5f : s.dtype == BF16 ? 1.2e-2f : s.dtype == Q8_0 ? 5e-3f : 2e-3f;
}
constexpr float kLogitTolerance = 4e-5f;
float logit_tolerance(const KvShape& s) {
  return on_tensor_cores(s.dtype, s.head_dim) && s.dtype == Q8_0 ? 2e-3f : kLogitTolerance;
}

template <class... T>
std::string text(const T&... parts) {
  return (testing::Message() << ... << parts).GetString();
}

struct AttentionTest : CommandsTest<> {
  std::vector<Attended> run(const std::vector<KvPair*>& kv, const std::vector<Request>& requests) {
    return attend(commands.get(), &attention, kv, requests);
  }
  Attended run(KvPair& kv, const Request& request) { return run({&kv}, {request})[0]; }
  Attended keys(KvPair& kv, const Request& request) { return attend(commands.get(), &attention, {&kv}, {request}, 1, true)[0]; }
  // Every row in a pass of its own.
  Attended alone(KvPair& kv, const Request& request) {
    Attended all;
    for (int64_t r = 0; r < std::ssize(request.last); ++r) {
      const Attended row = run(kv, rows_of(request, r, 1, kv.shape));
      append(all.out, row.out), append(all.lse, row.lse);
    }
    return all;
  }
  void expect_reference(KvPair& kv, const Request& request, const std::string& what = "") {
    if (left_out()) return;
    const Attended right = expected(kv, request), got = run(kv, request);
    const std::string all =
        text(what, " ", kv.shape.name(), " len ", kv.len, " rows ", request.last.size(), " window ", request.window);
    EXPECT_LE(distance(got.out, right.out), out_tolerance(kv.shape)) << all;
    EXPECT_LE(distance(got.lse, right.lse), logit_tolerance(kv.shape)) << all;
  }
  void store_row(KvPair& kv, int64_t entry, int row) {
    const size_t width = kv.shape.kv_heads * kv.shape.head_dim;
    kv.put(*commands, 1, entry, random_floats(width, 1000 + uint32_t(row)), random_floats(width, 2000 + uint32_t(row)));
  }
  void expect_chains(const KvShape& shape, const Ints& parents, int64_t first_entry, int window);

  CudaAttention attention;
};
// Names of suites, which hide the class here.
using CudaAttention = AttentionTest;
using CudaScores = AttentionTest;

const std::vector<KvShape> kTensorShapes{
    {BF16, 2, 4, 128}, {BF16, 1, 8, 64}, {F16, 1, 4, 128}, {F8_E4M3, 1, 4, 128}, {Q8_0, 2, 8, 64}};
const std::vector<KvShape> kShapes{{BF16, 2, 4, 128}, {BF16, 1, 8, 64}, {F16, 1, 4, 128}, {F16, 2, 1, 64}, {BF16, 2, 5, 128},
    {BF16, 1, 16, 64}, {F32, 2, 2, 80}, {Q8_0, 2, 2, 64}, {BF16, 1, 2, 48}, {BF16, 1, 32, 64}, {F8_E4M3, 2, 4, 128},
    {F8_E4M3, 1, 8, 64}, {Q8_0, 1, 4, 128}};

TEST_F(CudaAttention, EqualsReferenceForEveryTypeAndHeadShape) {
  for (const KvShape& shape : kShapes) {
    KvPair kv(*commands, shape, 203);
    expect_reference(kv, chunk(shape, 64, 1), "a block and one");
    expect_reference(kv, chunk(shape, 202, 1));
    expect_reference(kv, chunk(shape, 198, 5));
    expect_reference(kv, chunk(shape, 0, 203));
  }
}

TEST_F(CudaAttention, EqualsReferenceAroundBlockSplitAndSuperEdges) {
  for (const KvShape& shape : {KvShape{BF16, 1, 4, 128}, {F32, 1, 2, 16}})
    for (const int64_t len : {1, 2, 63, 64, 65, 127, 129, 1023, 1024, 1025, 2049, 8192, 8193, 9300}) {
      KvPair kv(*commands, shape, len);
      expect_reference(kv, chunk(shape, len - 1, 1));
      if (len > 20) expect_reference(kv, chunk(shape, len - 20, 20));
    }
}

// Plans are kept: a drafter's rows may stand where the target's do, under as many KV heads and fewer query heads.
TEST_F(CudaAttention, EqualsReferenceForOtherQueryHeadsAtTheSamePositions) {
  for (const int group : {4, 3, 4}) {
    const KvShape shape{BF16, 2, group, 64};
    KvPair kv(*commands, shape, 203);
    for (const int64_t rows : {1, 2}) expect_reference(kv, chunk(shape, 200, rows));
  }
}

TEST_F(CudaAttention, EqualsReferenceWithinWindows) {
  for (const KvShape& shape : {KvShape{BF16, 1, 4, 64}, {F32, 1, 2, 16}}) {
    KvPair kv(*commands, shape, 2200);
    for (const int window : {1, 2, 63, 64, 65, 200, 1024, 1500}) {
      expect_reference(kv, chunk(shape, 2190, 10, 5, window));
      expect_reference(kv, chunk(shape, 0, 150, 5, window));
    }
  }
}

// One row alone, against the same row in passes of every form.
TEST_F(CudaAttention, GivesARowTheSameBitsAloneInVerifyAndInPromptChunks) {
  for (const KvShape& shape : kShapes)
    for (const int window : {0, 70, 1010}) {
      if (left_out()) continue;
      const int64_t len = 1080, first = 985;  // rows on both sides of a split's end
      KvPair kv(*commands, shape, len);
      const Request all = chunk(shape, first, len - first, 3, window);
      const int64_t width = shape.width(), heads = shape.heads();
      const Attended one_by_one = alone(kv, all);
      ASSERT_FALSE(std::isnan(std::accumulate(one_by_one.out.begin(), one_by_one.out.end(), 0.0f)));
      for (const int64_t size : {2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 32, 95}) {
        if (left_out()) continue;
        int64_t wrong = 0;
        for (int64_t r = 0; r < len - first; r += size) {
          const int64_t rows = std::min(size, len - first - r);
          const Attended part = run(kv, rows_of(all, r, rows, shape));
          wrong += !stands_at(part.out, one_by_one.out, r * width);
          wrong += !stands_at(part.lse, one_by_one.lse, r * heads);
        }
        ASSERT_EQ(wrong, 0) << shape.name() << " chunks of " << size << " window " << window;
      }
    }
}

// Chunks over codes are widened first, pages in order: beside each other, in a window, and with a short run over the store.
TEST_F(CudaAttention, GivesARowTheSameBitsInAChunkThatIsWidenedFirst) {
  for (const KvShape& shape : {KvShape{F8_E4M3, 2, 4, 128}, {Q8_0, 2, 2, 64}, {Q8_0, 1, 4, 128}})
    for (const int window : {0, 300}) {
      if (left_out()) continue;
      KvPair a(*commands, shape, 1500), b(*commands, shape, 700, 9);
      const std::vector<Request> requests{chunk(shape, 700, 800, 3, window), chunk(shape, 100, 600, 4), chunk(shape, 690, 10, 5)};
      const std::vector<Attended> together = run({&a, &b, &b}, requests);
      for (size_t r = 0; r < 3; ++r)
        for (int64_t first = 0; first < std::ssize(requests[r].last); first += 200) {
          const int64_t rows = std::min<int64_t>(200, std::ssize(requests[r].last) - first);
          const Attended part = run(r == 0 ? a : b, rows_of(requests[r], first, rows, shape));
          ASSERT_TRUE(stands_at(part.out, together[r].out, first * shape.width()))
              << shape.name() << " run " << r << " rows from " << first << " window " << window;
        }
    }
}

// Rows whose greatest logits stand far apart and grow from tile to tile, each in other ones.
TEST_F(CudaAttention, GivesARowTheSameBitsWhateverItsCompanyMakesOfReferences) {
  for (const KvShape& shape : kTensorShapes) {
    const int64_t len = 1400, rows = 40;
    KvPair kv(*commands, shape, len);
    Request all = chunk(shape, len - rows, rows, 3);
    const size_t width = shape.width();
    for (size_t r = 0; r < size_t(rows); ++r)
      for (size_t i = 0; i < width; ++i) all.q[r * width + i] *= std::exp2(float(r * 7 % 6));
    const Floats one_by_one = alone(kv, all).out;
    for (const int64_t size : {2, 8, 12, 40})
      for (int64_t r = 0; r < rows; r += size) {
        const int64_t count = std::min(size, rows - r);
        const Attended part = run(kv, rows_of(all, r, count, shape));
        ASSERT_TRUE(stands_at(part.out, one_by_one, r * width)) << shape.name() << " rows from " << r << ", " << count;
      }
    if (shape.dtype == Q8_0) continue;  // logits this large tell rounded keys from others
    const Attended right = expected(kv, all);
    EXPECT_LE(distance(one_by_one, right.out), out_tolerance(shape)) << shape.name();
  }
}

// A weight between 256 and what rounds to more than 256 leaves a row's reference where it is, also beside a row that needs
// another.
TEST_F(CudaAttention, GivesARowTheSameBitsAtTheEdgeOfItsReferencesSlack) {
  const KvShape shape{BF16, 1, 1, 128, 2};
  const int64_t len = 200;
  const float unit = 1 / std::sqrt(128.0f) * 1.44269504f;
  float query = 0, key = 0;  // exact in bf16, with 8 < their logit < 8.005
  for (int a = 128; a < 256 && query == 0; ++a)
    for (int b = 128; b < 256 && query == 0; ++b)
      if (const float logit = unit * (float(a) / 32) * (float(b) / 16); logit > 8.0005f && logit < 8.005f)
        query = float(a) / 32, key = float(b) / 16;
  ASSERT_GT(query, 0);
  KvPair kv(*commands, shape, len);
  Floats k(size_t(len) * 128, 0.0f);
  k[100 * 128] = key;
  kv.put(*commands, 1, 0, k, random_floats(k.size(), 8));
  for (const int64_t rows : {2, 40, 100}) {  // in columns of the instruction, in its rows, in two tiles
    Request all = chunk(shape, len - rows, rows);
    std::ranges::fill(all.q, 0.0f);
    for (int64_t r = 0; r < rows; ++r) all.last[r] = int32_t(len - 1), all.q[r * 128] = r == 0 ? query : 2 * query;
    const Attended together = run(kv, all), alone = run(kv, rows_of(all, 0, 1, shape));
    EXPECT_TRUE(same_bits(together.out.data(), alone.out.data(), 128)) << rows;
  }
}

// Long contexts are dealt to workers in other stretches than short ones, and many sequences in others than one.
TEST_F(CudaAttention, GivesARowTheSameBitsBesideOtherSequences) {
  for (const KvShape& shape : kTensorShapes) {
    std::vector<std::unique_ptr<KvPair>> kv;
    std::vector<KvPair*> pairs;
    std::vector<Request> requests;
    std::vector<Attended> alone;
    const std::vector<int64_t> lengths{20000, 70, 3000, 1, 9000, 1024}, rows{8, 3, 1, 1, 200, 12};
    for (size_t i = 0; i < lengths.size(); ++i) {
      kv.push_back(std::make_unique<KvPair>(*commands, shape, lengths[i], uint32_t(i)));
      pairs.push_back(kv.back().get());
      requests.push_back(chunk(shape, lengths[i] - rows[i], rows[i], 30 + uint32_t(i), i == 2 ? 500 : 0));
      alone.push_back(run(*pairs.back(), requests.back()));
    }
    const auto together = run(pairs, requests);
    for (size_t i = 0; i < lengths.size(); ++i) {
      EXPECT_EQ(distance(together[i].out, alone[i].out), 0) << shape.name() << " sequence " << i;
      EXPECT_EQ(distance(together[i].lse, alone[i].lse), 0) << shape.name() << " sequence " << i;
      EXPECT_LE(distance(alone[i].out, expected(*pairs[i], requests[i]).out), out_tolerance(shape)) << " sequence " << i;
    }
  }
}

// Which worker takes what changes with the number of workers and from run to run.
TEST_F(CudaAttention, GivesTheSameBitsOnAnyNumberOfBlocks) {
  for (const KvShape& shape : {KvShape{BF16, 2, 4, 128}, {BF16, 2, 8, 64}})
    for (const int64_t rows : {1, 5, 8, 12, 40}) {
      if (left_out()) continue;
      std::vector<Attended> results;
      for (const int blocks : {0, 1, 3, 3}) {
        commands = Commands::make().value();
        hunch::CudaAttention of_blocks(blocks);
        KvPair a(*commands, shape, 9300, 1), b(*commands, shape, 20000, 2);
        Request first = chunk(shape, 9300 - rows, rows, 1), second = chunk(shape, 20000 - rows, rows, 2);
        second.metric = ScoreMetric::Weight, second.combine = ScoreCombine::Max, second.prefix_len = 19900;
        second.sets = shape.kv_heads, second.row_used.assign(rows, 1);
        second.lse.assign(rows * shape.heads(), 9);
        for (int again = 0; again < 2; ++again) {
          const auto got = attend(commands.get(), &of_blocks, {&a, &b}, {first, second});
          if (results.empty()) results = got;
          for (size_t i = 0; i < 2; ++i) {
            ASSERT_TRUE(same_bits(got[i].out, results[i].out)) << blocks << " blocks";
            for (size_t set = 0; set < got[i].scores.size(); ++set)
              ASSERT_EQ(distance(got[i].scores[set], results[i].scores[set]), 0) << blocks << " blocks";
          }
        }
      }
    }
}

// NaN stands before the first entry. Rows that read nothing get zeros; the others the bits of a window that begins there.
TEST_F(CudaAttention, ReadsNothingBeforeTheFirstEntry) {
  for (const KvShape& shape : kShapes)
    for (const int64_t first : {1, 37, 63, 64, 1000, 1024, 1290})
      for (const int64_t begin : std::vector<int64_t>{first, first + 70, first - 1, first - 30, first - 200})
        for (const int rows : {1, 9, 100}) {
          if (begin < 0 || left_out()) continue;
          KvPair kv(*commands, shape, begin + rows);
          Request request = chunk(shape, begin, rows, 15, rows == 9 ? 50 : 0);
          request.first = first;
          const Attended kept = run(kv, request);
          const int64_t unknown = std::min(first, kv.len);
          kv.poison(0, unknown);
          const Attended got = run(kv, request), right = expected(kv, request);
          const std::string what = text(shape.name(), " from ", first, " rows ", rows, " at ", begin);
          ASSERT_TRUE(same_bits(got.out, kept.out)) << what;
          EXPECT_LE(distance(got.out, right.out), out_tolerance(shape)) << what;
          const int64_t heads = shape.heads(), width = shape.width();
          for (size_t i = 0; i < got.lse.size(); ++i) {
            if (request.last[i / heads] < first) ASSERT_EQ(got.lse[i], -INFINITY) << what;
            else ASSERT_NEAR(got.lse[i], right.lse[i], logit_tolerance(shape)) << what;
          }
          for (const size_t r : {size_t(0), size_t(rows - 1)}) {
            if (request.last[r] < first) continue;
            Request windowed = rows_of(request, int64_t(r), 1, shape);
            const Attended alone = run(kv, windowed);
            ASSERT_TRUE(stands_at(alone.out, got.out, r * width)) << what << " row " << r;
            if (request.window) continue;
            windowed.first = 0, windowed.window = int(request.last[r] - first + 1);
            const Attended same = run(kv, windowed);
            ASSERT_TRUE(stands_at(same.out, got.out, r * width)) << what << " row " << r;
          }
        }
}

// In chunks, in a window, in a tree, over a selection, and where a row reads nothing else.
TEST_F(CudaAttention, GivesTheSinkOfAHeadItsWeightOnceARow) {
  std::mt19937 random(4);
  std::vector<KvShape> shapes = kShapes;
  shapes.push_back({BF16, 8, 8, 64});
  for (const KvShape& shape : shapes) {
    const int64_t heads = shape.heads(), width = shape.width();
    auto sinks = random_floats(heads, 17, 3);
    sinks[0] = 20, sinks[heads - 1] = heads > 1 ? -INFINITY : 5;
    for (const int64_t len : {1, 203, 1100, 9300})
      for (const int window : {0, 128})
        for (const int64_t rows : {1, 7, 90}) {
          if (rows > len || rows * len > 20000) continue;
          KvPair kv(*commands, shape, len);
          Request request = chunk(shape, len - rows, rows, 3, window);
          request.sinks = sinks;
          expect_reference(kv, request, "sinks");
          const Attended all = run(kv, request);
          for (const int64_t r : {int64_t(0), rows / 2, rows - 1}) {
            const Attended one = run(kv, rows_of(request, r, 1, shape));
            ASSERT_TRUE(stands_at(one.out, all.out, r * width)) << shape.name() << " row " << r;
            ASSERT_TRUE(stands_at(one.lse, all.lse, r * heads)) << shape.name() << " row " << r;
          }
          if (len != 203 || window > 0 || rows > 7) continue;
          request.index_sets = 1, request.tail_first = len - rows;
          for (int32_t e = 0; e < int32_t(len - rows); e += 3) request.index.push_back(e);
          for (int64_t r = 0; r < rows; ++r) request.last[r] = int32_t(std::ssize(request.index) + r);
          expect_reference(kv, request, "sinks over a selection");
        }
    KvPair kv(*commands, shape, 80);
    Request tree = tree_request(shape, random_tree(12, 0.5, random), 60, 0), none = chunk(shape, 5, 2);
    tree.sinks = none.sinks = sinks, none.first = 10;
    expect_reference(kv, tree, "sinks in a tree");
    const Attended nothing = run(kv, none);
    EXPECT_EQ(distance(nothing.out, Floats(2 * width)), 0) << shape.name();
    for (int64_t i = 0; i < 2 * heads; ++i)
      if (std::isinf(sinks[i % heads])) EXPECT_EQ(nothing.lse[i], -INFINITY);
      else EXPECT_NEAR(nothing.lse[i], sinks[i % heads], kLogitTolerance) << shape.name();
  }
}

// NaN in K and V that one row reads harms no other row.
TEST_F(CudaAttention, KeepsNaNToTheRowsThatReadIt) {
  for (const KvShape& shape : kShapes) {
    KvPair kv(*commands, shape, 300);
    for (const int rows : {5, 40}) {
      const Request all = chunk(shape, 300 - rows, rows);
      const Attended clean = run(kv, all);
      kv.store->poison(kv.pages(), 298, 299);
      const Attended got = run(kv, all);
      const size_t width = shape.width(), read = size_t(rows - 2) * width;
      EXPECT_TRUE(same_bits(got.out.data(), clean.out.data(), read)) << shape.name() << " rows " << rows;
      EXPECT_TRUE(std::isnan(got.out[read]) && std::isnan(got.out[read + width])) << shape.name();
      kv = KvPair(*commands, shape, 300);
    }
  }
}

void AttentionTest::expect_chains(const KvShape& shape, const Ints& parents, int64_t first_entry, int window) {
  if (left_out()) return;
  const int rows = int(parents.size());
  KvPair kv(*commands, shape, first_entry + rows + 64), chain(*commands, shape, first_entry + rows + 64);
  kv.store->poison(kv.pages(), first_entry, std::ssize(kv.table) * kPageLen);
  for (int x = 0; x < rows; ++x) store_row(kv, first_entry + x, x);
  const Request request = tree_request(shape, parents, first_entry, window);
  const Attended whole = run(kv, request);
  const int64_t width = shape.width(), heads = shape.heads();
  const std::string what = text(shape.name(), " rows ", rows, " at ", first_entry, " window ", window);
  int leaves = 0;
  for (int x = rows - 1; x >= 0 && leaves < 6; --x) {
    if (std::ranges::find(parents, x) != parents.end()) continue;  // a leaf's chain holds its ancestors
    ++leaves;
    const auto path = path_to(parents, x);
    chain.store->poison(chain.pages(), first_entry, std::ssize(chain.table) * kPageLen);
    for (size_t d = 0; d < path.size(); ++d) store_row(chain, first_entry + int64_t(d), path[d]);
    const Attended right = run(chain, chain_of(request, path, shape));
    for (size_t d = 0; d < path.size(); ++d) {
      const size_t row = path[d];
      ASSERT_FALSE(std::isnan(whole.out[row * width])) << what << " row " << row;
      ASSERT_TRUE(same_bits(&whole.out[row * width], &right.out[d * width], width)) << what << " row " << row << " depth " << d;
      ASSERT_TRUE(same_bits(&whole.lse[row * heads], &right.lse[d * heads], heads)) << what << " row " << row;
    }
  }
  const Attended right = expected(kv, request);
  EXPECT_LE(distance(whole.out, right.out), out_tolerance(shape)) << what;
  // A part of the tree, with NaN in every row that is no ancestor of the part's one row.
  const int x = rows - 1;
  const auto path = path_to(parents, x);
  for (int other = 0; other < rows; ++other)
    if (std::ranges::find(path, other) == path.end()) kv.store->poison(kv.pages(), first_entry + other, first_entry + other + 1);
  const Attended part = run(kv, rows_of(request, x, 1, shape));
  ASSERT_TRUE(stands_at(part.out, whole.out, x * width)) << what << " alone";
}

TEST_F(CudaAttention, GivesARowOfATreeTheBitsOfItsTokensInAChain) {
  std::mt19937 random(3);
  for (const KvShape& shape :
      {KvShape{BF16, 1, 4, 128}, {F16, 2, 8, 64}, {F32, 1, 2, 16}, {F8_E4M3, 1, 4, 128}, {Q8_0, 1, 4, 64}})
    for (const int64_t first_entry : {1, 37, 63, 64, 960, 1000, 1022, 1024})
      for (const double chain : {0.2, 0.8})
        expect_chains(shape, random_tree(2 + int(random() % 40), chain, random), first_entry, first_entry == 1000 ? 60 : 0);
  expect_chains({BF16, 1, 4, 128}, random_tree(256, 0.9, random), 1000, 0);
  expect_chains({BF16, 1, 4, 128}, random_tree(256, 0.3, random), 8190, 0);
}

TEST_F(CudaAttention, ReadsNoRowOfATreeBeforeTheFirstEntry) {
  std::mt19937 random(9);
  for (const KvShape& shape : kTensorShapes)
    for (const int64_t root : {1, 60, 1022})
      for (const int64_t first : {int64_t(1), root, root + 2, root + 100}) {
        KvPair kv(*commands, shape, root + 12);
        Request request = tree_request(shape, random_tree(12, 0.5, random), root, 0);
        request.first = first;
        const int64_t unknown = std::min(first, kv.len);
        kv.poison(0, std::min(unknown, root));
        const Attended got = run(kv, request), right = expected(kv, request);
        EXPECT_LE(distance(got.out, right.out), out_tolerance(shape)) << shape.name() << " root " << root << " from " << first;
      }
}

TEST_F(CudaScores, EqualReferenceForEveryMetricCombinationAndSet) {
  struct Case {
    int64_t len, rows, prefix;
  };
  for (const KvShape& shape : {KvShape{BF16, 2, 4, 128}, {BF16, 2, 8, 64}, {F16, 2, 1, 64}, {BF16, 2, 2, 64}, {BF16, 1, 16, 64},
           {BF16, 2, 5, 128}, {BF16, 2, 1, 256}, {F16, 1, 1, 312}, {F32, 2, 3, 24}, {F8_E4M3, 2, 4, 128}, {Q8_0, 2, 4, 64}})
    for (const Case c :
        {Case{100, 8, 92}, Case{1200, 3, 1197}, Case{1200, 12, 1024}, Case{70, 1, 64}, Case{200, 70, 20}, Case{300, 20, 280}}) {
      KvPair kv(*commands, shape, c.len);
      for (const ScoreMetric metric : {ScoreMetric::Logit, ScoreMetric::Weight})
        for (const ScoreCombine combine : {ScoreCombine::Sum, ScoreCombine::Max})
          for (const bool shared : {false, true}) {
            if (left_out()) continue;
            const Request request = scored(shape, c.len, c.rows, metric, combine, shared, c.prefix);
            const Attended right = expected(kv, request);
            const float tolerance = logit_tolerance(shape) * std::sqrt(float(c.rows));  // of a sum over rows
            const auto what =
                text(shape.name(), " rows ", c.rows, " metric ", int(metric), " combine ", int(combine), " shared ", shared);
            const Attended got = run(kv, request);
            expect_scores(got, right, c.prefix, tolerance, what);
            const Attended by_keys = keys(kv, request);
            expect_scores(by_keys, right, c.prefix, tolerance, what + " by keys");
            Request blocks = request;
            blocks.block = kScoreBlock, blocks.prefix_len = c.prefix / kScoreBlock * kScoreBlock;
            const float apart = shape.head_dim == 256 ? tolerance : 0;  // of bf16: entries have a kernel of their own
            expect_greatest(run(kv, blocks), got, blocks.prefix_len, what, apart);
            expect_greatest(keys(kv, blocks), by_keys, blocks.prefix_len, what + " by keys", apart);
            Request without = request;
            without.metric = ScoreMetric::None;
            const Attended plain = run(kv, without);
            ASSERT_TRUE(same_bits(plain.out, got.out)) << what;
          }
    }
}

// More splits than there are consumers: what one left must not show in the next.
TEST_F(CudaScores, OfBlocksAreTheGreatestInEverySplit) {
  constexpr int64_t kLen = 50000, kPrefix = 49000;
  for (const KvShape& shape : {KvShape{BF16, 8, 4, 128}, {BF16, 8, 8, 64}}) {
    KvPair kv(*commands, shape, kLen);
    for (const int64_t rows : {1, 8, 12}) {
      const Request request = scored(shape, kLen, rows, ScoreMetric::Weight, ScoreCombine::Max, false, kPrefix);
      Request blocks = request;
      blocks.block = kScoreBlock;
      expect_greatest(run(kv, blocks), run(kv, request), kPrefix, text(shape.name(), " rows ", rows), 0);
      expect_greatest(keys(kv, blocks), keys(kv, request), kPrefix, shape.name() + " by keys", 0);
    }
  }
}

TEST_F(CudaScores, OfATreeAreThoseOfAChain) {
  std::mt19937 random(7);
  for (const bool shared : {false, true})
    for (const int64_t first_entry : {70, 1022}) {
      const KvShape shape{BF16, 2, 4, 128};
      KvPair kv(*commands, shape, first_entry + 12);
      Request tree = tree_request(shape, random_tree(10, 0.4, random), first_entry, 0);
      tree.metric = ScoreMetric::Weight, tree.combine = ScoreCombine::Max, tree.prefix_len = first_entry;
      tree.sets = shared ? 1 : 2, tree.row_used = {1, 1, 0, 1, 1, 1, 0, 1, 1, 1};
      tree.lse.assign(10 * shape.heads(), 6);
      Request chain = tree;
      chain.parents.clear();
      std::iota(chain.last.begin(), chain.last.end(), int32_t(first_entry));
      const Attended a = run(kv, tree), b = run(kv, chain);
      for (size_t set = 0; set < a.scores.size(); ++set) EXPECT_EQ(distance(a.scores[set], b.scores[set]), 0);
    }
}

// A selection read in place has the bits of the same entries gathered into a store of their own.
TEST_F(CudaAttention, ReadsASelectionAsIfItWereGathered) {
  std::mt19937 random(8);
  for (const KvShape& shape : kShapes)
    for (const bool shared : {false, true})
      for (const int64_t count : {1, 63, 150, 1100}) {
        if (left_out()) continue;
        KvPair kv(*commands, shape, 2500);
        const int64_t tail_first = 2490, tail = 7;
        Request request = chunk(shape, count + tail - 3, 3);
        request.index_sets = shared ? 1 : shape.kv_heads, request.tail_first = tail_first;
        for (int set = 0; set < request.index_sets; ++set) {
          std::set<int32_t> chosen;
          while (std::ssize(chosen) < count) chosen.insert(int32_t(random() % uint32_t(tail_first)));
          request.index.insert(request.index.end(), chosen.begin(), chosen.end());
        }
        std::set<int32_t> all(request.index.begin(), request.index.end());
        for (int32_t e = 0; e < tail_first && std::ssize(all) < 400; ++e)  // what is not selected does not matter
          if (!all.contains(e)) kv.store->poison(kv.pages(), e, e + 1);
        const Attended got = run(kv, request);
        const auto what = text(shape.name(), " shared ", shared, " count ", count);
        EXPECT_LE(distance(got.out, expected(kv, request).out), out_tolerance(shape)) << what;
        KvPair copy(*commands, shape, count + tail);
        copy.store->poison(copy.pages(), 0, count + tail);
        const DeviceArray<int32_t> index(request.index);
        enqueue_gather_kv(
            *commands, {1, kv.ref(), copy.ref(), view(index, request.index_sets, count), tail_first, tail_first + tail});
        Request dense = request;
        dense.index_sets = 0;
        const Attended gathered = run(copy, dense);
        // Selections have splits of their own: within one of them the bits are those of a dense read.
        const bool one_split = count + tail <= kSelectedSplitEntries;
        EXPECT_LE(distance(got.out, gathered.out), one_split ? 0 : out_tolerance(shape)) << what;
        EXPECT_LE(distance(got.lse, gathered.lse), one_split ? 0 : 1e-4) << what;
      }
}

}
}
