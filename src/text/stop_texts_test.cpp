// Stop texts in streams: nothing of one is ever given out, nothing else is lost, however the text is cut.
#include "text/stop_texts.h"

#include <gtest/gtest.h>

#include <random>

#include "text/unicode.h"

namespace hunch {
namespace {

struct Outcome {
  std::string text;
  int found = -1;
  bool operator==(const Outcome&) const = default;
};

// Pieces end at `cuts`, ascending; then the rest.
Outcome stream(const std::vector<std::string>& stops, const std::string& text, const std::vector<size_t>& cuts) {
  StopTexts finder(stops);
  Outcome out;
  size_t from = 0;
  for (size_t i = 0; i <= cuts.size(); ++i) {
    const size_t to = i < cuts.size() ? cuts[i] : text.size();
    const bool stopped = finder.feed(std::string_view(text).substr(from, to - from), out.text);
    EXPECT_EQ(stopped, finder.found() >= 0);
    from = to;
  }
  finder.flush(out.text);
  out.found = finder.found();
  return out;
}

// By definition: the first end of a match anywhere in the text; of those that end there the longest.
Outcome search(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    int found = -1;
    for (size_t i = 0; i < stops.size(); ++i)
      if (text.substr(0, end).ends_with(stops[i]) && (found < 0 || stops[i].size() > stops[found].size())) found = int(i);
    if (found >= 0) return {text.substr(0, end - stops[found].size()), found};
  }
  return {text, -1};
}

TEST(StopTexts, EndTheOutputBeforeTheStopText) {
  EXPECT_EQ(stream({"</s>", "\n\n"}, "one\ntwo\n\nthree</s>", {}), (Outcome{"one\ntwo", 1}));
  EXPECT_EQ(stream({"</s>"}, "one</s", {}), (Outcome{"one</s", -1}));
  EXPECT_EQ(stream({}, "one", {1}), (Outcome{"one", -1}));
}

TEST(StopTexts, TakeTheOneThatIsCompleteFirstThenTheLongest) {
  EXPECT_EQ(stream({"bc", "abcd"}, "xabcd", {}), (Outcome{"xa", 0}));
  EXPECT_EQ(stream({"bc", "abc"}, "xabcd", {}), (Outcome{"x", 1}));
  EXPECT_EQ(stream({"abc", "bc"}, "xabcd", {3}), (Outcome{"x", 0}));
}

TEST(StopTexts, HoldBackOnlyWhatMayBecomeOne) {
  StopTexts finder({"aab"});
  std::string out;
  EXPECT_FALSE(finder.feed("xa", out));
  EXPECT_EQ(out, "x");
  EXPECT_FALSE(finder.feed("aa", out));  // of "aaa" the first is free
  EXPECT_EQ(out, "xa");
  EXPECT_EQ(finder.held_back(), 2u);
  EXPECT_FALSE(finder.feed("c", out));
  EXPECT_EQ(out, "xaaac");
  EXPECT_TRUE(finder.feed("aabaab", out));
  EXPECT_TRUE(finder.feed("more", out));
  finder.flush(out);
  EXPECT_EQ(out, "xaaac");
}

TEST(StopTexts, EqualTheSearchOfTheWholeTextHoweverItIsCut) {
  std::mt19937 random(1);
  const auto word = [&](size_t most, int letters) {
    std::string text;
    for (size_t n = 1 + random() % most; n > 0; --n) text += char('a' + int(random() % uint32_t(letters)));
    return text;
  };
  int found = 0;
  for (int trial = 0; trial < 20'000; ++trial) {
    const int letters = 2 + int(random() % 2);
    std::vector<std::string> stops;
    for (size_t n = random() % 4; n > 0; --n) stops.push_back(word(7, letters));
    const std::string text = word(30, letters);
    std::vector<size_t> cuts;
    for (size_t at = 0; at < text.size(); at += random() % 5) cuts.push_back(at);  // empty pieces too
    const Outcome want = search(stops, text);
    ASSERT_EQ(stream(stops, text, cuts), want) << text;
    ASSERT_EQ(stream(stops, text, {}), want) << text;
    found += want.found >= 0;
  }
  EXPECT_GT(found, 5'000);
}

TEST(StopTexts, GiveOutWholeCharacters) {
  // The stop texts share first bytes with characters of the text.
  StopTexts finder({"é!", "日本"});
  std::string out;
  for (const char* piece : {"è", "é", "日", "日", "月", "é", "?"}) {
    std::string released;
    EXPECT_FALSE(finder.feed(piece, released));
    EXPECT_FALSE(first_invalid_utf8(released)) << piece;
    out += released;
  }
  finder.flush(out);
  EXPECT_EQ(out, "èé日日月é?");
}

}
}
