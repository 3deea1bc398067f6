// Sizes, numbers and choices as typed, and the words of their refusals.
#include "api/values.h"

#include <gtest/gtest.h>

namespace hunch {
namespace {

int64_t bytes(std::string_view text) {
  const auto r = parse_bytes("--kv-memory", text);
  return r.ok() ? r.value() : -1;
}

TEST(Values, ReadsSizesInBytes) {
  for (const auto& [text, size] :
      {std::pair("1", int64_t(1)), {"4096B", 4096}, {"64K", 64 << 10}, {"64KiB", 64 << 10}, {"256M", 256 << 20},
          {"256MiB", 256 << 20}, {"64KB", 64000}, {"256MB", 256000000}, {"1.5G", int64_t(3) << 29}, {"2GiB", int64_t(2) << 30}})
    EXPECT_EQ(bytes(text), size) << text;
}

TEST(Values, RefusesWhatIsNoSize) {
  for (const char* bad : {"", "x", "-1", "0", "0.2", "1Q", "1 M", "nan", "inf", "1e40", "9999999999999999999G", "0x10", "1MM"})
    EXPECT_EQ(bytes(bad), -1) << bad;
  const auto r = parse_bytes("--kv-memory", "lots");
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.error().kind, Error::Kind::Usage);
  EXPECT_EQ(
      r.error().message, "--kv-memory needs a size such as 268435456, 256M, 256MiB or 1.5G (at least 1 byte), not \"lots\"");
}

TEST(Values, NamesFlagValueAndRange) {
  EXPECT_EQ(parse_whole("--draft", "99999999999999999999", {1, 64}).error().message,
      "--draft must be in 1..64, not \"99999999999999999999\"");
  EXPECT_EQ(parse_whole("-n", "5x", {-1, 10}).error().message, "-n needs a whole number in -1..10, not \"5x\"");
  EXPECT_EQ(parse_number("--temp", "inf", {0, std::numeric_limits<double>::max()}).error().message,
      "--temp must be at least 0, not \"inf\"");
  EXPECT_EQ(parse_number("--temp", "x", {0, 1}).error().message, "--temp needs a number in 0..1, not \"x\"");
}

TEST(Values, SuggestsTheNearestChoice) {
  static constexpr std::string_view kPolicies[] = {"vegas", "streamingllm", "full"};
  EXPECT_EQ(parse_choice("--policy", "vegs", kPolicies).error().message,
      "--policy must be one of vegas, streamingllm, full, not \"vegs\" (did you mean vegas?)");
  EXPECT_EQ(parse_choice("--policy", "quest", kPolicies).error().message,
      "--policy must be one of vegas, streamingllm, full, not \"quest\"");
  EXPECT_EQ(parse_choice("--policy", "full", kPolicies).value(), "full");
}

}
}
