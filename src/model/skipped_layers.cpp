#include "model/skipped_layers.h"

#include <algorithm>
#include <charconv>

#include "base/failure.h"

namespace hunch {
namespace {

// A whole number of at most six digits, or -1.
int number_of(std::string_view text) {
  int n = -1;
  if (text.empty() || text.size() > 6 || !std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; })) return -1;
  std::from_chars(text.data(), text.data() + text.size(), n);
  return n;
}

Error no_such_form() {
  return usage_error("layers to skip: say how many (2), or which ones with commas, counted from 0 (3,5 or 3,)");
}

}

Result<std::vector<uint8_t>> skipped_layers(std::string_view text, int layers) {
  std::vector<uint8_t> skipped(std::max(layers, 0), 0);
  if (text.empty() || text == "0") return std::vector<uint8_t>{};
  if (text.find(',') == text.npos) {
    const int count = number_of(text), spare = std::max(0, layers - 2 * kKeptEnds);
    if (count < 0) return no_such_form();
    if (count > spare)
      return usage_error(
          "{} layers to skip: the model has {}, of which the first and the last {} always run; skip at most {}, or "
          "name the layers",
          count, layers, kKeptEnds, spare);
    // The middles of `count` equal parts.
    for (int i = 0; i < count; ++i) skipped[kKeptEnds + (2 * i + 1) * spare / (2 * count)] = 1;
    return count > 0 ? skipped : std::vector<uint8_t>{};
  }
  if (text.back() == ',') text.remove_suffix(1);
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const int layer = number_of(text.substr(at, end - at));
    if (layer < 0) return no_such_form();
    if (layer >= layers) return usage_error("layer {} to skip: the model has {}, counted from 0", layer, layers);
    skipped[layer] = 1;
    at = end + 1;
  }
  if (std::ranges::count(skipped, uint8_t(0)) == 0) return usage_error("all {} layers to skip: at least one must run", layers);
  return skipped;
}

}
