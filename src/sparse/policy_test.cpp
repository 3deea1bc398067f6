// Budgets: how many entries of a prefix a policy keeps.
#include "sparse/policy.h"

#include <gtest/gtest.h>

namespace hunch {
namespace {

TEST(KeptEntries, CountsTheRatioAsTheDecimalItWasWrittenAs) {
  struct Case {
    double ratio;
    int min_tokens;
    int64_t valid, kept;
  };
  const Case cases[] = {
      {0.07, 1, 300, 21},  // 21.000000000000004 in double
      {0.07, 1, 400, 28},
      {0.07, 1, 600, 42},
      {0.07, 1, 301, 22},
      {0.07, 1, 299, 21},
      {0.07, 16, 100, 16},
      {0.07, 16, 10, 10},
      {0.07, 16, 0, 0},
      {1, 16, 1000, 1000},
      {0.01, 1, 100, 1},
      {0.01, 1, 101, 2},
      {0.3, 1, 10, 3},
      {0.29, 1, 100, 29},
      {1e-9, 1, 1000000, 1},
      {0.07, 16, 128000, 8960},
      {0.5, 256, 100, 100},
  };
  for (const Case& c : cases)
    EXPECT_EQ(kept_entries({.ratio = c.ratio, .min_tokens = c.min_tokens}, c.valid), c.kept) << c.ratio << " of " << c.valid;
}

TEST(KeptEntries, NeverDecreasesAndNeverExceedsThePrefix) {
  for (const double ratio : {0.01, 0.07, 0.33, 1.0})
    for (int64_t valid = 1; valid < 2000; ++valid) {
      const int64_t kept = kept_entries({.ratio = ratio}, valid);
      EXPECT_LE(kept, valid);
      EXPECT_GE(kept, kept_entries({.ratio = ratio}, valid - 1));
      EXPECT_GE(kept, std::min<int64_t>(valid, 16));
    }
}

TEST(KeptEntries, IsAtMostTheGivenBudget) {
  EXPECT_EQ(kept_entries({.ratio = 0.5, .min_tokens = 64, .max_tokens = 40}, 1000), 40);
  EXPECT_EQ(kept_entries({.ratio = 0.01, .max_tokens = 40}, 1000), 16);
  EXPECT_EQ(kept_entries({.ratio = 1, .max_tokens = 40}, 30), 30);
}

TEST(Selection, PutsTheTailBehindTheSelectedEntries) {
  const Selection selection{.grain = Selection::Grain::Token, .prefix = 21, .tail_first = 300};
  EXPECT_EQ(selection.entry_of(300), 21);
  EXPECT_EQ(selection.entry_of(305), 26);
}

}
}
