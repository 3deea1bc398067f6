// Values from text by std::from_chars: it knows no locale, takes no white space and stops at the first byte that does not belong.
#include "api/values.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "api/nearest.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::max();

std::string number_text(double x) {
  return std::abs(x) < 1e15 && x == std::floor(x) ? fmt::format("{}", int64_t(x)) : fmt::format("{:g}", x);
}

template <class Number>
Result<Number> parse(std::string_view flag, std::string_view text, const Range& range, std::string_view what) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if ((error != std::errc() && error != std::errc::result_out_of_range) || end != text.data() + text.size())
    return usage_error("{} needs {} {}, not {}", flag, what, range.text(), excerpt(text));
  if (error != std::errc() || !std::isfinite(double(value)) || !range.holds(double(value)))
    return usage_error("{} must be {}, not {}", flag, range.text(), excerpt(text));
  return value;
}

}

std::string Range::text() const {
  if (least == -kUnbounded && most == kUnbounded) return "finite";
  if (most == kUnbounded) return fmt::format("{} {}", above_least ? "above" : "at least", number_text(least));
  if (above_least) return fmt::format("above {} and at most {}", number_text(least), number_text(most));
  return fmt::format("in {}..{}", number_text(least), number_text(most));
}

Result<int64_t> parse_whole(std::string_view flag, std::string_view text, const Range& range) {
  return parse<int64_t>(flag, text, range, "a whole number");
}

Result<double> parse_number(std::string_view flag, std::string_view text, const Range& range) {
  return parse<double>(flag, text, range, "a number");
}

Result<int64_t> parse_bytes(std::string_view flag, std::string_view text) {
  const Error bad =
      usage_error("{} needs a size such as 268435456, 256M, 256MiB or 1.5G (at least 1 byte), not {}", flag, excerpt(text));
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value)) return bad;
  const std::string_view unit(end, size_t(text.data() + text.size() - end));
  static constexpr std::pair<std::string_view, double> kUnits[] = {{"", 1}, {"B", 1}, {"K", 1024.}, {"k", 1024.}, {"KiB", 1024.},
      {"M", 0x1p20}, {"MiB", 0x1p20}, {"G", 0x1p30}, {"GiB", 0x1p30}, {"T", 0x1p40}, {"TiB", 0x1p40}, {"KB", 1e3}, {"kB", 1e3},
      {"MB", 1e6}, {"GB", 1e9}};
  for (const auto& [name, size] : kUnits) {
    if (name != unit) continue;
    const double bytes = std::floor(value * size);
    if (!(bytes >= 1) || bytes > 0x1p50) return bad;  // a pebibyte is a typing error
    return int64_t(bytes);
  }
  return bad;
}

Result<std::string> parse_choice(std::string_view flag, std::string_view text, std::span<const std::string_view> choices) {
  for (std::string_view choice : choices)
    if (choice == text) return std::string(text);
  return usage_error("{} must be one of {}, not {}{}", flag, comma_list(choices), excerpt(text), did_you_mean(text, choices));
}

std::string comma_list(std::span<const std::string_view> words) { return fmt::format("{}", fmt::join(words, ", ")); }

}
