#include "text/jinja/text.h"

namespace hunch::jinja {
namespace {

bool begins_character(char byte) { return (uint8_t(byte) & 0xC0) != 0x80; }

}

int64_t Text::length() const {
  if (characters < 0) characters = std::ranges::count_if(bytes, begins_character);
  return characters;
}

size_t Text::byte_of(int64_t index) const {
  if (is_ascii()) return index;
  size_t at = 0;
  for (; at < bytes.size(); ++at)
    if (begins_character(bytes[at]) && index-- == 0) break;
  return at;
}

Text part_of(const Text& text, size_t begin, size_t end, Heap& heap) {
  Text part{.bytes = text.bytes.substr(begin, end - begin), .trusted = text.trusted};
  if (text.runs.empty()) return part;
  TextBuilder runs(end - begin);
  runs.append(text, begin, end);
  if (runs.runs().size() > 1) part.runs = heap.copy(runs.runs());
  part.trusted = !runs.runs().empty() && runs.runs()[0].trusted;
  return part;
}

void TextBuilder::append(std::string_view bytes, bool trusted) {
  if (bytes.empty() || full_) return;
  if (bytes.size() > limit_ - bytes_.size()) {
    full_ = true;
    return;
  }
  bytes_ += bytes;
  if (!runs_.empty() && runs_.back().trusted == trusted) runs_.back().end = bytes_.size();
  else runs_.push_back({bytes_.size(), trusted});
}

void TextBuilder::append(const Text& text, size_t begin, size_t end) {
  if (text.runs.empty()) return append(text.bytes.substr(begin, end - begin), text.trusted);
  auto run = std::ranges::partition_point(text.runs, [&](const Run& r) { return r.end <= begin; });
  for (; begin < end && run != text.runs.end(); ++run) {
    const size_t stop = std::min(end, run->end);
    append(text.bytes.substr(begin, stop - begin), run->trusted);
    begin = stop;
  }
}

Text TextBuilder::finish(Heap& heap) const {
  Text text{.bytes = heap.copy(std::string_view(bytes_)), .trusted = !runs_.empty() && runs_[0].trusted};
  if (runs_.size() > 1) text.runs = heap.copy(runs_);
  // An empty literal joins with anything; what it is taken for does not matter.
  return text;
}

}
