#include "model/skipped_layers.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace hunch {
namespace {

std::string shown(std::string_view text, int layers) {
  auto skipped = skipped_layers(text, layers);
  if (!skipped.ok()) return skipped.error().message;
  std::string out;
  for (const uint8_t s : *skipped) out += s ? 'x' : '.';
  return out;
}

TEST(SkippedLayers, ANumberIsSpreadEvenlyBetweenTheEndsWhichAlwaysRun) {
  EXPECT_EQ(shown("", 8), "");
  EXPECT_EQ(shown("0", 8), "");
  EXPECT_EQ(shown("1", 8), "....x...");
  EXPECT_EQ(shown("2", 8), "...x.x..");
  EXPECT_EQ(shown("4", 8), "..xxxx..");
  EXPECT_EQ(shown("3", 16), "....x...x...x...");
  EXPECT_EQ(shown("1", 5), "..x..");
  for (int layers = 5; layers < 40; ++layers)
    for (int count = 1; count <= layers - 4; ++count) {
      const std::string row = shown(std::to_string(count), layers);
      EXPECT_EQ(std::ranges::count(row, 'x'), count) << layers;
      EXPECT_EQ(row.substr(0, 2) + row.substr(row.size() - 2), "....") << layers;
    }
}

TEST(SkippedLayers, AListNamesThem) {
  EXPECT_EQ(shown("3,5", 8), "...x.x..");
  EXPECT_EQ(shown("5,3,5", 8), "...x.x..");
  EXPECT_EQ(shown("0,", 2), "x.");
  EXPECT_EQ(shown("7,", 8), ".......x");
}

TEST(SkippedLayers, RefusesWhatTheModelCannotSpare) {
  EXPECT_EQ(shown("5", 8),
      "5 layers to skip: the model has 8, of which the first and the last 2 always run; skip at most 4, or name the layers");
  EXPECT_EQ(shown("1", 3),
      "1 layers to skip: the model has 3, of which the first and the last 2 always run; skip at most 0, or name the layers");
  EXPECT_EQ(shown("8,", 8), "layer 8 to skip: the model has 8, counted from 0");
  EXPECT_EQ(shown("1,0", 2), "all 2 layers to skip: at least one must run");
  for (const char* text : {"x", "-1", "1.5", ",", "1,,2", "1, 2", "12345678", ",1"})
    EXPECT_EQ(shown(text, 8), "layers to skip: say how many (2), or which ones with commas, counted from 0 (3,5 or 3,)") << text;
}

}
}
