// Scores of attention and score_keys on every instruction set.

#include "backend/cpu/kv_fixture.h"

namespace hunch {
namespace {

// attention() and score_keys() of one request on one backend.
AttendResult score_keys_alone(Backend& backend, const KvCase& kv, const AttendRequest& request) {
  Floats scores;
  backend.score_keys({.scale = 1 / std::sqrt(float(kv.shape.head_dim)),
      .q = view(request.q, request.last.size(), kv.shape.heads(), kv.shape.head_dim),
      .kv = kv.ref(),
      .scores = score_args(request, kv.shape, scores)});
  return {.scores = sets_of(request, scores)};
}

TEST(CpuScores, EqualReferenceForEveryMetricCombinationAndSet) {
  ReferenceBackend reference;
  for (DType dtype : kKvTypes)
    for (int group : {1, 3}) {
      const KvShape shape{dtype, 2, group, 24};
      for (const auto& [len, rows, prefix] :
          {std::array<int64_t, 3>{100, 8, 92}, {1200, 3, 1197}, {1200, 9, 1024}, {70, 1, 64}, {300, 280, 20}}) {
        const KvCase expected_kv(reference, shape, len);
        for (ScoreMetric metric : {ScoreMetric::Logit, ScoreMetric::Weight})
          for (ScoreCombine combine : {ScoreCombine::Sum, ScoreCombine::Max})
            for (bool shared : {false, true}) {
              const AttendRequest request = scored(shape, len, rows, metric, combine, shared, prefix);
              const AttendResult expected = attend_one(reference, expected_kv, request);
              for (const std::string& isa : available_isas()) {
                const auto cpu = make_cpu(isa, 2);
                const KvCase kv(*cpu, shape, len);
                const float tolerance = logit_tolerance(dtype) * std::sqrt(float(rows));  // of a sum over rows
                const auto what = fmt::format(
                    "{} {} rows {} metric {} combine {} shared {}", isa, shape.name(), rows, int(metric), int(combine), shared);
                expect_scores(attend_one(*cpu, kv, request), expected, prefix, tolerance, what);
                const AttendResult by_keys = score_keys_alone(*cpu, kv, request);
                expect_scores(by_keys, expected, prefix, tolerance, what + " by keys");
                AttendRequest blocks = request;
                blocks.block = kScoreBlock, blocks.prefix_len = prefix / kScoreBlock * kScoreBlock;
                expect_greatest(attend_one(*cpu, kv, blocks), attend_one(*cpu, kv, request), blocks.prefix_len, what);
                expect_greatest(score_keys_alone(*cpu, kv, blocks), by_keys, blocks.prefix_len, what + " by keys");
              }
            }
      }
    }
}

TEST(CpuScores, ChangeNoBitOfTheOutput) {
  for (const auto& [isa, dtype] : every_store())
    for (bool shared : {false, true}) {
      const KvShape shape{dtype, 2, 2, 32};
      const auto cpu = make_cpu(isa, 2);
      const KvCase kv(*cpu, shape, 1500);
      for (ScoreMetric metric : {ScoreMetric::Logit, ScoreMetric::Weight}) {
        AttendRequest request = scored(shape, 1500, 8, metric, ScoreCombine::Max, shared, 1492);
        const AttendResult with = attend_one(*cpu, kv, request);
        request.metric = ScoreMetric::None;
        const AttendResult without = attend_one(*cpu, kv, request);
        EXPECT_TRUE(same_bits(with, without)) << isa;
      }
    }
}

TEST(CpuScores, AreTheSameBitsForAnyNumberOfThreads) {
  for (const std::string& isa : available_isas())
    for (bool shared : {false, true}) {
      const KvShape shape{DType::BF16, 2, 2, 64};
      const auto one = make_cpu(isa, 1), three = make_cpu(isa, 3);
      const KvCase kv(*one, shape, 3000);
      const AttendRequest request = scored(shape, 3000, 8, ScoreMetric::Weight, ScoreCombine::Max, shared, 2992);
      const AttendResult a = attend_one(*one, kv, request), b = attend_one(*three, kv, request);
      ASSERT_EQ(a.scores.size(), b.scores.size());
      for (size_t set = 0; set < a.scores.size(); ++set) EXPECT_TRUE(same_bits(a.scores[set], b.scores[set])) << isa;
    }
}

TEST(CpuScores, OfAWholeRowAreItsSoftmaxWithItsOwnLogSumExp) {
  const auto cpu = make_cpu("", 2);
  const KvShape shape{DType::F32, 2, 1, 64};
  const KvCase kv(*cpu, shape, 900);
  AttendRequest request = scored(shape, 900, 1, ScoreMetric::Weight, ScoreCombine::Sum, false, 900);
  request.row_used = {1};
  request.lse = attend_one(*cpu, kv, rows_of(request, 0, 1, shape)).lse;
  const AttendResult result = attend_one(*cpu, kv, request);
  for (const auto& set : result.scores) EXPECT_NEAR(std::accumulate(set.begin(), set.begin() + 900, 0.0), 1.0, 1e-5);
}

}
}
