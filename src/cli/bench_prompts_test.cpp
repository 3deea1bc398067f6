// Prompts of a file, and what their prefill multiplies.
#include "cli/bench_prompts.h"
#include "base/test_results.h"

#include "checkpoint/random_checkpoint.h"
#include "cli/bench.h"

namespace hunch {
namespace {

TEST(BenchPrompts, AreDealtOneOfEachKindInTurnAndCutToOneLength) {
  const std::vector<BenchPrompt> all{
      {"a", 0, {1, 2, 3}}, {"a", 0, {4, 5, 6, 7}}, {"b", 0, {8, 9}}, {"a", 0, {1}}, {"b", 0, {10, 11, 12}}};
  const auto four = dealt(all, 4, 100);
  ASSERT_EQ(four.size(), 4u);
  EXPECT_EQ(four[0].ids, (Ints{2, 3}));  // the end is kept
  EXPECT_EQ(four[1].ids, (Ints{8, 9}));
  EXPECT_EQ(four[2].ids, (Ints{6, 7}));
  EXPECT_EQ(four[3].ids, (Ints{11, 12}));
  EXPECT_EQ(dealt(all, 0, 100).size(), 5u);
  EXPECT_EQ(dealt(all, 2, 1)[1].ids, (Ints{9}));  // no more than there is room for
}

TEST(PrefillWork, CountsMatricesForEveryTokenAndTheHeadOnce) {
  const auto checkpoint = random_checkpoint("qwen3-8b", DType::BF16).value();
  // 4096 (4096 + 2 1024) + 4096^2 + 3 4096 12288 elements a layer.
  const double layer = 4096. * 6144 + 4096. * 4096 + 3 * 4096. * 12288, head = 151936. * 4096;
  const PrefillWork one = prefill_work(*checkpoint, 1), many = prefill_work(*checkpoint, 1000);
  EXPECT_DOUBLE_EQ(one.products, 2 * (36 * layer + head));
  EXPECT_DOUBLE_EQ(many.products, 2 * (36 * 1000 * layer + head));
  EXPECT_DOUBLE_EQ(one.attention, 36 * 4. * 32 * 128);
  EXPECT_DOUBLE_EQ(many.attention, 36 * 4. * 32 * 128 * 500500);
  // Of experts those that a token goes to: 8 of 128, of 768, and 4 of 32, of 2880, without the biases.
  const double qwen = 2048. * 5120 + 4096. * 2048 + 2048. * 128 + 8 * 3 * 2048. * 768,
               gpt = 2880. * (2 * 4096 + 1024 + 32) + 4 * 3 * 2880. * 2880;
  EXPECT_DOUBLE_EQ(
      prefill_work(*random_checkpoint("qwen3-30b-a3b", DType::BF16).value(), 1).products, 2 * (48 * qwen + 151936. * 2048));
  EXPECT_DOUBLE_EQ(
      prefill_work(*random_checkpoint("gpt-oss-20b", DType::BF16).value(), 1).products, 2 * (24 * gpt + 201088. * 2880));
}

}
}
