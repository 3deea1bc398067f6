#include "cli/demo_book.h"

#include <gtest/gtest.h>

namespace hunch {
namespace {

TEST(DemoBook, IsTheSameForTheSameSeed) {
  EXPECT_EQ(make_demo_book(50, 3).text(), make_demo_book(50, 3).text());
  EXPECT_NE(make_demo_book(50, 3).text(), make_demo_book(50, 4).text());
}

TEST(DemoBook, HidesTheAnswersAllOverAndNowhereElse) {
  const DemoBook book = make_demo_book(300, 1);
  ASSERT_EQ(book.asked.size(), 6u);
  for (size_t k = 0; k < 6; ++k) EXPECT_EQ(book.asked[k] / 50, k);
  size_t found = 0;
  for (const BookRecord& record : book.records) found += record.town == book.asked_town;
  EXPECT_EQ(found, 6u);
}

TEST(DemoBook, ChecksAnswersLineByLine) {
  const DemoBook book = make_demo_book(60, 1);
  std::string answer;
  for (size_t i : book.asked) answer += book.records[i].listed() + "\n";
  EXPECT_EQ(book.check(answer).right.size(), 6u);
  EXPECT_TRUE(book.check(answer).missing.empty());
  const auto check = book.check("- 1: Nobody, clerk\n" + book.records[book.asked[0]].listed());
  EXPECT_EQ(check.right.size(), 1u);
  EXPECT_EQ(check.wrong.size(), 1u);
  EXPECT_EQ(check.missing.size(), 5u);
}

}  // namespace
}  // namespace hunch
