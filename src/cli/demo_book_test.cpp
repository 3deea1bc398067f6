// The book is reproducible and its questions have one answer.
#include "cli/demo_book.h"

#include <gtest/gtest.h>

namespace hunch {
namespace {

TEST(DemoBook, IsTheSameForTheSameSeed) {
  EXPECT_EQ(make_demo_book(50, 3).text(), make_demo_book(50, 3).text());
  EXPECT_NE(make_demo_book(50, 3).text(), make_demo_book(50, 4).text());
}

TEST(DemoBook, AsksForFactsFromAllOverTheBookThatStandThereOnce) {
  const DemoBook book = make_demo_book(300, 1);
  ASSERT_EQ(book.questions.size(), 3u);
  EXPECT_LT(book.questions[0].record, 60u);
  EXPECT_GT(book.questions[2].record, 200u);
  const std::string text = book.text();
  const BookRecord& early = book.records[book.questions[0].record];
  EXPECT_EQ(text.find(early.name), text.rfind(early.name));
  EXPECT_EQ(text.find(early.badge), text.rfind(early.badge));
  EXPECT_EQ(text.find(book.questions[1].facts[0]), text.rfind(book.questions[1].facts[0]));
}

TEST(DemoBook, JudgesAnswersByTheirFacts) {
  const DemoBook book = make_demo_book(60, 1);
  const BookRecord& late = book.records[book.questions[2].record];
  EXPECT_TRUE(book.questions[2].answered_by(late.name + " comes from " + late.town + " and is a " + late.trade + "."));
  EXPECT_FALSE(book.questions[2].answered_by(late.name + " comes from " + late.town + "."));
}

TEST(DemoBook, EndsAPromptWhereTheAnswerBegins) {
  const DemoBook book = make_demo_book(60, 1);
  const std::string prompt = book.ask(book.copy_question);
  EXPECT_TRUE(prompt.ends_with(book.copy_question + "<|im_end|>\n<|im_start|>assistant\n"));
  EXPECT_TRUE(book.text().ends_with(".\n"));
}

}
}
