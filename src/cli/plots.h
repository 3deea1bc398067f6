// Plots as inline SVG text: lines over a numeric axis, and stacked bars. Colours are the page's CSS variables --c0 .. --c7,
// --ink,
// --faint and --grid: one picture serves light and dark pages. Used by hunch report.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hunch {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x, y; sorted by x when drawn
};

struct LinePlot {
  std::string title, x_title, y_title;
  bool log_x = false;     // powers of two
  double reference = -1;  // a dashed horizontal line here ("as fast as plain"); negative: none
  bool share = false;     // y runs from 0 to 1 and is labelled in per cent
  std::vector<Series> series;
};

struct StackedBars {
  std::string title;
  std::vector<std::string> parts;  // legend, bottom up (left to right)
  struct Bar {
    std::string name;
    std::vector<double> values;  // one per part, any unit; drawn as shares of their sum
  };
  std::vector<Bar> bars;
};

// Empty text where there is nothing to draw.
std::string svg(const LinePlot& plot);
std::string svg(const StackedBars& plot);

// "1K", "16K", "0.5", "1.25": short axis labels.
std::string axis_label(double value);
// & < > " ' as entities: text from files stays text in the page.
std::string html_escaped(std::string_view text);

}
