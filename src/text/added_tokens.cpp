// The contents are sorted, so that the tokens which begin with a given prefix are one range.
#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"

namespace hunch {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::ranges::sort(tokens_, [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (const AddedToken& token : tokens_) first_.set(uint8_t(token.content[0]));
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto at = std::ranges::lower_bound(tokens_, content, {}, &AddedToken::content);
  return at != tokens_.end() && at->content == content ? &*at : nullptr;
}

const AddedToken* AddedTokens::duplicate() const {
  const auto at = std::adjacent_find(
      tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) { return a.content == b.content; });
  return at == tokens_.end() ? nullptr : &*at;
}

// Narrows the range of candidates one byte at a time and remembers the longest that is complete.
const AddedToken* AddedTokens::match_at(std::string_view text, size_t at) const {
  const AddedToken* longest = nullptr;
  auto low = tokens_.begin(), high = tokens_.end();
  for (size_t depth = 0; at + depth < text.size(); ++depth) {
    const uint8_t wanted = uint8_t(text[at + depth]);
    low = std::partition_point(
        low, high, [&](const AddedToken& t) { return t.content.size() <= depth || uint8_t(t.content[depth]) < wanted; });
    high = std::partition_point(low, high, [&](const AddedToken& t) { return uint8_t(t.content[depth]) == wanted; });
    if (low == high) break;
    if (low->content.size() == depth + 1) longest = &*low;
  }
  return longest;
}

std::vector<AddedTokens::Piece> AddedTokens::split(std::string_view text, bool parse_special, const Ranges* special_in) const {
  std::vector<Piece> pieces;
  size_t plain = 0;  // where the plain text that is not yet cut off begins
  size_t range = 0;  // the first of special_in that does not end before `at`
  for (size_t at = 0; !tokens_.empty() && at < text.size();) {
    const AddedToken* token = first_.test(uint8_t(text[at])) ? match_at(text, at) : nullptr;
    if (!token) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->content.size();
    if (special_in && token->special) {
      while (range < special_in->size() && (*special_in)[range].second <= at) ++range;
      const bool inside = range < special_in->size() && (*special_in)[range].first <= at;
      // A token that begins in a range and runs out of it may hide a shorter one that does not.
      if (inside && (*special_in)[range].second < end) token = match_at(text.substr(0, (*special_in)[range].second), at);
      if (!inside || !token) {
        // What is not taken must not use up text of a range: a mark of the template could begin there.
        const bool before = !inside && range < special_in->size();
        at = inside ? at + 1 : before ? std::min(end, (*special_in)[range].first) : end;
        continue;
      }
      end = at + token->content.size();
    }
    at = end;  // a match uses up its text even if it is then not taken, as in Hugging Face
    if (token->special && !parse_special) continue;
    if (token->single_word && (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) continue;
    if (token->lstrip) begin -= white_space_at_end(text.substr(plain, begin - plain));
    if (token->rstrip) at = end += white_space_at_start(text.substr(end));
    if (plain < begin) pieces.push_back({plain, begin, -1});
    pieces.push_back({begin, end, token->id});
    plain = end;
  }
  if (plain < text.size()) pieces.push_back({plain, text.size(), -1});
  return pieces;
}

}
