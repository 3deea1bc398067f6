// One automaton for each stop text: a byte costs O(1) amortised, whatever repeats in text and stop texts.
#include "text/stop_texts.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace hunch {

StopTexts::StopTexts(std::vector<std::string> stops) {
  size_t longest = 0;
  for (std::string& text : stops) {
    HUNCH_CHECK(!text.empty());
    longest = std::max(longest, text.size());
    std::vector<size_t> border(text.size(), 0);
    for (size_t i = 1, matched = 0; i < text.size(); ++i) {
      while (matched > 0 && text[i] != text[matched]) matched = border[matched - 1];
      border[i] = matched += text[i] == text[matched];
    }
    stops_.push_back({std::move(text), std::move(border)});
  }
  held_.reserve(2 * longest);
}

bool StopTexts::feed(std::string_view piece, std::string& out) {
  if (found_ >= 0) return true;
  const size_t held = held_.size();
  for (size_t at = 0; at < piece.size(); ++at) {
    for (Stop& stop : stops_) {
      while (stop.matched > 0 && piece[at] != stop.text[stop.matched]) stop.matched = stop.border[stop.matched - 1];
      stop.matched += piece[at] == stop.text[stop.matched];
      if (stop.matched < stop.text.size()) continue;
      if (found_ < 0 || stop.text.size() > text(found_).size()) found_ = int(&stop - stops_.data());
      stop.matched = stop.border.back();
    }
    if (found_ < 0) continue;
    // The match may begin in what was held back, never before it.
    const size_t kept = held + at + 1 - text(found_).size();
    out.append(held_, 0, std::min(kept, held));
    if (kept > held) out.append(piece.substr(0, kept - held));
    held_.clear();
    return true;
  }

  size_t longest = 0;
  for (const Stop& stop : stops_) longest = std::max(longest, stop.matched);
  const size_t free = held + piece.size() - longest;  // bytes that no stop text can begin in any more
  out.append(held_, 0, std::min(free, held));
  held_.erase(0, std::min(free, held));
  const size_t from_piece = free > held ? free - held : 0;
  out.append(piece.substr(0, from_piece));
  held_.append(piece.substr(from_piece));
  return false;
}

void StopTexts::flush(std::string& out) {
  out += held_;
  held_.clear();
  for (Stop& stop : stops_) stop.matched = 0;
}

}
