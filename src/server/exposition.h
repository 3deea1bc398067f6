// The text format that Prometheus reads (version 0.0.4), and histograms for it. Used by Metrics.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hunch {

class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds) : bounds_(bounds.begin(), bounds.end()), counts_(bounds.size() + 1) {}
  // One that was counted elsewhere: a count for each interval and one above all bounds.
  Histogram(std::span<const double> bounds, std::span<const int64_t> counts, double sum)
      : bounds_(bounds.begin(), bounds.end()), counts_(counts.begin(), counts.end()), sum_(sum) {}
  void observe(double value, int64_t times = 1);
  double sum() const { return sum_; }
  const std::vector<double>& bounds() const { return bounds_; }
  const std::vector<int64_t>& counts() const { return counts_; }  // of each interval; the last is above all bounds

 private:
  std::vector<double> bounds_;
  std::vector<int64_t> counts_;
  double sum_ = 0;
};

class Exposition {
 public:
  using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;
  // What follows belongs to the family of this name, until the next. Type: counter, gauge, histogram.
  void family(std::string_view name, std::string_view type, std::string_view help);
  void value(Labels labels, double value);
  void histogram(Labels labels, const Histogram& histogram);
  std::string take() { return std::move(out_); }

 private:
  void sample(std::string_view suffix, Labels labels, std::string_view bound, double value);
  std::string out_, name_;
};

}
