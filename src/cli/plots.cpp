#include "cli/plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace hunch {
namespace {

constexpr double kWidth = 640, kHeight = 320, kLeft = 56, kRight = 16, kTop = 34, kBottom = 44, kLegendRow = 18;
constexpr int kColours = 8;

// The nearest 1, 2 or 5 times a power of ten that leaves at most six steps.
double nice_step(double span) {
  const double raw = span / 5, power = std::pow(10, std::floor(std::log10(raw)));
  for (double factor : {1., 2., 5.})
    if (factor * power >= raw) return factor * power;
  return 10 * power;
}

struct Axis {
  double least = 0, most = 1, from = 0, to = 1;
  bool log = false;
  double at(double v) const {
    const double a = log ? std::log2(least) : least, b = log ? std::log2(most) : most, x = log ? std::log2(v) : v;
    return from + (to - from) * (b > a ? (x - a) / (b - a) : 0.5);
  }
};

std::string text_at(double x, double y, std::string_view anchor, std::string_view text, std::string_view css = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor,
      css.empty() ? "" : fmt::format(" class=\"{}\"", css), html_escaped(text));
}

std::string open_svg(double height, const std::string& title) {
  return fmt::format(
             "<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n", kWidth, height, html_escaped(title)) +
      text_at(kLeft, 18, "start", title, "title");
}

// Below the plot; names go on as many rows as they need. Returns the text and adds the height used.
std::string legend(const std::vector<std::string>& names, double top, double& height) {
  std::string out;
  double x = kLeft, y = top;
  for (size_t i = 0; i < names.size(); ++i) {
    const double width = 26 + 6.6 * names[i].size();
    if (x > kLeft && x + width > kWidth) x = kLeft, y += kLegendRow;
    out +=
        fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"10\" height=\"10\" fill=\"var(--c{})\"/>\n", x, y - 9, i % kColours);
    out += text_at(x + 15, y, "start", names[i]);
    x += width;
  }
  height = y + 12;
  return out;
}

}

std::string axis_label(double value) {
  if (value >= 1024 && std::fmod(value, 1024) == 0) return fmt::format("{:g}K", value / 1024);
  if (value >= 10000) return fmt::format("{:g}k", std::round(value / 100) / 10);
  return fmt::format("{:.4g}", value);
}

std::string html_escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string svg(const LinePlot& plot) {
  Axis x{.from = kLeft, .to = kWidth - kRight, .log = plot.log_x}, y{.from = kHeight - kBottom, .to = kTop};
  std::vector<double> xs;
  double most = plot.reference;
  for (const Series& s : plot.series)
    for (const auto& [px, py] : s.points)
      if (std::isfinite(px) && std::isfinite(py) && (!plot.log_x || px > 0)) xs.push_back(px), most = std::max(most, py);
  if (xs.empty()) return "";
  std::ranges::sort(xs);
  xs.erase(std::unique(xs.begin(), xs.end()), xs.end());
  x.least = xs.front(), x.most = xs.back();
  const double step = plot.share ? 0.25 : nice_step(most > 0 ? most : 1);
  y.most = plot.share ? 1 : step * std::ceil(std::max(most, step) / step);

  std::string out;
  for (double v = 0; v <= y.most + step / 2; v += step) {
    out += fmt::format(
        "<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", x.from, x.to, y.at(v), y.at(v));
    out += text_at(x.from - 6, y.at(v) + 4, "end", plot.share ? fmt::format("{:.0f} %", 100 * v) : axis_label(v));
  }
  double free_from = -1e9;
  for (double v : xs) {  // a label where there is data and room
    if (x.at(v) < free_from) continue;
    out += text_at(x.at(v), y.from + 16, "middle", axis_label(v));
    free_from = x.at(v) + 34;
  }
  out += text_at((x.from + x.to) / 2, y.from + 34, "middle", plot.x_title, "faint");
  out += text_at(x.to, 18, "end", plot.y_title, "faint");
  if (plot.reference >= 0)
    out += fmt::format("<line class=\"mark\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", x.from, x.to,
        y.at(plot.reference), y.at(plot.reference));
  std::vector<std::string> names;
  for (size_t i = 0; i < plot.series.size(); ++i) {
    auto points = plot.series[i].points;
    std::erase_if(points,
        [&](const auto& p) { return !std::isfinite(p.first) || !std::isfinite(p.second) || (plot.log_x && p.first <= 0); });
    std::ranges::sort(points);
    std::string path, dots;
    for (const auto& [px, py] : points) {
      path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", x.at(px), y.at(py));
      dots +=
          fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"var(--c{})\"><title>{}: {} at {}</title></circle>\n",
              x.at(px), y.at(py), i % kColours, html_escaped(plot.series[i].name), axis_label(py), axis_label(px));
    }
    out += fmt::format("<polyline class=\"line\" stroke=\"var(--c{})\" points=\"{}\"/>\n{}", i % kColours, path, dots);
    names.push_back(plot.series[i].name);
  }
  double height = kHeight;
  out += legend(names, kHeight + 6, height);
  return open_svg(height, plot.title) + out + "</svg>\n";
}

std::string svg(const StackedBars& plot) {
  if (plot.bars.empty()) return "";
  constexpr double kBar = 22, kName = 190;
  std::string out;
  double y = kTop;
  for (const StackedBars::Bar& bar : plot.bars) {
    double sum = 0, x = kName;
    for (double v : bar.values) sum += std::max(0.0, v);
    out += text_at(kName - 8, y + 15, "end", bar.name);
    for (size_t i = 0; i < bar.values.size() && sum > 0; ++i) {
      const double share = std::max(0.0, bar.values[i]) / sum, width = share * (kWidth - kRight - kName);
      out += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\" fill=\"var(--c{})\"><title>{} {:.0f} "
          "%</title></rect>\n",
          x, y, width, kBar - 4, i % kColours, html_escaped(plot.parts[i]), 100 * share);
      if (width > 34) out += text_at(x + width / 2, y + 13, "middle", fmt::format("{:.0f} %", 100 * share), "on");
      x += width;
    }
    y += kBar;
  }
  double height = 0;
  out += legend(plot.parts, y + 18, height);
  return open_svg(height, plot.title) + out + "</svg>\n";
}

}
