#include "server/exposition.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace hunch {

void Histogram::observe(double value, int64_t times) {
  const size_t at = std::ranges::lower_bound(bounds_, value) - bounds_.begin();  // bounds are inclusive
  counts_[at] += times;
  sum_ += value * times;
}

void Exposition::family(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  fmt::format_to(std::back_inserter(out_), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

void Exposition::value(Labels labels, double value) { sample("", labels, "", value); }

void Exposition::histogram(Labels labels, const Histogram& histogram) {
  int64_t so_far = 0;
  for (size_t i = 0; i < histogram.bounds().size(); ++i)
    sample("_bucket", labels, fmt::format("{}", histogram.bounds()[i]), double(so_far += histogram.counts()[i]));
  sample("_bucket", labels, "+Inf", double(so_far += histogram.counts().back()));
  sample("_sum", labels, "", histogram.sum());
  sample("_count", labels, "", so_far);
}

void Exposition::sample(std::string_view suffix, Labels labels, std::string_view bound, double value) {
  out_ += name_;
  out_ += suffix;
  char before = '{';
  const auto label = [&](std::string_view name, std::string_view text) {
    fmt::format_to(std::back_inserter(out_), "{}{}=\"", std::exchange(before, ','), name);
    for (const char c : text) {
      if (c == '\n') out_ += "\\n";
      else if (c == '"' || c == '\\') (out_ += '\\') += c;
      else out_ += c;
    }
    out_ += '"';
  };
  for (const auto& [name, text] : labels) label(name, text);
  if (!bound.empty()) label("le", bound);
  if (before == ',') out_ += '}';
  fmt::format_to(std::back_inserter(out_), " {}\n", value);
}

}
