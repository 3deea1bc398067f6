#include "text/detokenizer.h"

#include "text/unicode.h"

namespace hunch {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}

void Detokenizer::append(int32_t id, std::string& out) {
  if (skip_special_ && tokenizer_->is_special(id)) return;
  pending_ += tokenizer_->token_bytes(id);
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Step step = utf8_step(rest);
    if (step.kind == Utf8Step::Kind::Unfinished) break;
    out += step.kind == Utf8Step::Kind::Character ? rest.substr(0, step.length) : kReplacement;
    rest.remove_prefix(step.length);
  }
  pending_.erase(0, pending_.size() - rest.size());
}

std::string Detokenizer::feed(int32_t id) { return feed(std::span(&id, 1)); }

std::string Detokenizer::feed(std::span<const int32_t> ids) {
  std::string out;
  for (const int32_t id : ids) append(id, out);
  return out;
}

std::string Detokenizer::flush() {
  const bool held = holds_back();
  pending_.clear();
  return std::string(held ? kReplacement : std::string_view{});
}

std::string detokenize(const Tokenizer& tokenizer, std::span<const int32_t> ids, bool skip_special) {
  Detokenizer stream(tokenizer, skip_special);
  std::string out = stream.feed(ids);
  return out += stream.flush();
}

}
