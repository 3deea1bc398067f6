// encode: added tokens are cut out, the rest goes through NFC and is searched for added tokens that are kept
// normalized, then words are cut and each word is merged.
#include "text/tokenizer.h"

#include <simdjson.h>

#include <algorithm>
#include <cstring>

#include "base/failure.h"
#include "text/excerpt.h"
#include "text/tokenizer_parts.h"
#include "text/unicode.h"

namespace hunch {
namespace {

// Special tokens that end a text or a turn wherever they occur; models often declare only one of theirs as EOS.
constexpr std::string_view kEndMarks[] = {"<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>"};

// The words of one call and what they became. Direct-mapped and of fixed size: text repeats itself, and a miss costs little.
class WordCache {
 public:
  // `source` and `ids` only grow while the cache lives.
  WordCache(const std::string& source, std::vector<int32_t>& ids) : source_(source), ids_(ids) {}

  void encode(const Bpe& bpe, size_t begin, size_t end) {
    const std::string_view word = std::string_view(source_).substr(begin, end - begin);
    if (word.size() == 1 || word.size() > kLongest) return bpe.encode_word(word, ids_);
    Entry& entry = entries_[hash(word) % kEntries];
    if (entry.length == word.size() && std::memcmp(source_.data() + entry.begin, word.data(), word.size()) == 0) {
      for (uint32_t i = 0; i < entry.num_ids; ++i) ids_.push_back(ids_[entry.first_id + i]);
      return;
    }
    const size_t first_id = ids_.size();
    bpe.encode_word(word, ids_);
    entry = {uint32_t(begin), uint32_t(first_id), uint16_t(word.size()), uint16_t(ids_.size() - first_id)};
  }

 private:
  static constexpr size_t kEntries = 4096, kLongest = 64;
  struct Entry {
    uint32_t begin = 0, first_id = 0;
    uint16_t length = 0, num_ids = 0;
  };
  static size_t hash(std::string_view word) {
    uint64_t head = 0, tail = 0;  // first and last 8 bytes, and the length: enough for a cache
    const size_t n = std::min<size_t>(8, word.size());
    std::memcpy(&head, word.data(), n);
    std::memcpy(&tail, word.data() + word.size() - n, n);
    return ((head * 0x9E3779B97F4A7C15u ^ tail) * 0xD6E8FEB86659FD93u + word.size()) >> 40;
  }

  const std::string& source_;
  std::vector<int32_t>& ids_;
  std::vector<Entry> entries_ = std::vector<Entry>(kEntries);
};

// The parts of `ranges` within text [begin, end), shifted to where they lie in `normal`, the normalized form of that text.
// Nothing if characters compose across a border: then no place in `normal` stands for it.
AddedTokens::Ranges normalized_ranges(
    const AddedTokens::Ranges& ranges, std::string_view text, size_t begin, size_t end, std::string_view normal, bool nfc) {
  AddedTokens::Ranges out;
  std::string sum;
  const auto add = [&](size_t from, size_t to) {
    if (nfc) append_nfc(text.substr(from, to - from), sum);
    else sum += text.substr(from, to - from);
  };
  size_t at = begin;
  for (const auto& [first, last] : ranges) {
    if (last <= begin || first >= end) continue;
    add(at, std::max(first, begin));
    const size_t from = sum.size();
    at = std::min(last, end);
    add(std::max(first, begin), at);
    out.push_back({from, sum.size()});
  }
  add(at, end);
  return sum == normal ? out : AddedTokens::Ranges{};
}

}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view utf8, EncodeOptions options) const {
  if (utf8.size() > kMaxTextBytes)
    return usage_error("the text is too long to tokenise: {} bytes, at most {}", utf8.size(), kMaxTextBytes);
  if (!simdjson::validate_utf8(utf8.data(), utf8.size()))
    if (const auto at = first_invalid_utf8(utf8)) return usage_error("the text is not valid UTF-8: at byte {}", *at);

  std::vector<int32_t> ids;
  ids.reserve(utf8.size() / 4 + 8);
  if (options.add_bos && adds_bos_) ids.push_back(*bos_id_);
  std::string source;  // all plain pieces one after another, normalized: what the cache's entries point into
  source.reserve(utf8.size() + utf8.size() / 8);
  WordCache cache(source, ids);
  PreTokenizer::Cutter cutter(pre_);
  for (const AddedTokens::Piece& piece : raw_.split(utf8, options.parse_special, options.special_in)) {
    if (piece.id >= 0) {
      ids.push_back(piece.id);
      continue;
    }
    const std::string_view plain = utf8.substr(piece.begin, piece.end - piece.begin);
    const size_t base = source.size();
    if (nfc_) append_nfc(plain, source);
    else source += plain;
    const std::string_view normal = std::string_view(source).substr(base);
    AddedTokens::Ranges inner_ranges;
    if (options.special_in && !normalized_.empty())
      inner_ranges = normalized_ranges(*options.special_in, utf8, piece.begin, piece.end, normal, nfc_);
    for (const AddedTokens::Piece& inner :
        normalized_.split(normal, options.parse_special, options.special_in ? &inner_ranges : nullptr)) {
      if (inner.id >= 0) {
        ids.push_back(inner.id);
        continue;
      }
      const std::string_view words = normal.substr(inner.begin, inner.end - inner.begin);
      const size_t first_plain = ids.size();
      for (size_t at = 0; at < words.size();) {
        HUNCH_TRY(const size_t end, cutter.next(words, at));
        cache.encode(bpe_, base + inner.begin + at, base + inner.begin + end);
        at = end;
      }
      // Guards against vocabularies whose merges lead to a special token.
      if (options.special_in && std::any_of(ids.begin() + first_plain, ids.end(), [&](int32_t id) { return is_special(id); }))
        return Error{"a special token came out of plain chat text: the tokenizer's merges are not safe for chat"};
    }
  }
  return ids;
}

std::string_view Tokenizer::token_bytes(int32_t id) const { return bpe_.bytes(id); }

std::optional<int32_t> Tokenizer::token_id(std::string_view text) const {
  if (const AddedToken* token = raw_.find(text)) return token->id;
  if (const AddedToken* token = normalized_.find(text)) return token->id;
  return bpe_.find(text);
}

bool Tokenizer::is_special(int32_t id) const { return id >= 0 && size_t(id) < special_.size() && special_[id]; }

Result<Tokenizer> TokenizerParts::assemble() && {
  HUNCH_TRY(PreTokenizer pre, PreTokenizer::make(family));
  Tokenizer out(std::move(pre));
  std::vector<AddedToken> raw, normalized;
  for (size_t i = 0; i < added.size(); ++i) {
    AddedToken& token = added[i];
    if (token.content.empty()) return failure("added token is empty: id {}", token.id);
    if (token.content.size() > kMaxAddedTokenBytes)
      return failure("added token longer than {} bytes: {}", kMaxAddedTokenBytes, excerpt(token.content));
    if (first_invalid_utf8(token.content))
      return failure("added token is not UTF-8: {} (id {})", excerpt(token.content), token.id);
    const auto known = bpe.find_spelling(token.content);
    if (known && *known != token.id)
      return failure(
          "added token {} has id {} in the vocabulary but {} among the added tokens", excerpt(token.content), *known, token.id);
    HUNCH_OK(bpe.add_text(token.id, token.content));
    if (token.special) {
      out.special_.resize(std::max(out.special_.size(), size_t(token.id) + 1));
      out.special_[token.id] = true;
    }
    if (added_normalized[i] && nfc) {
      std::string normal;
      append_nfc(token.content, normal);
      token.content = std::move(normal);
    }
    (added_normalized[i] ? normalized : raw).push_back(std::move(token));
  }
  HUNCH_OK(bpe.finish(whole_words));
  const auto check = [&](std::optional<int32_t> id, std::string_view what) -> Status {
    if (id && !bpe.has(*id)) return failure("{} id is not in the vocabulary: {}", what, *id);
    return {};
  };
  HUNCH_OK(check(bos_id, "BOS"));
  HUNCH_OK(check(eos_id, "EOS"));
  if (adds_bos && !bos_id) return Error{"the tokenizer is to add a BOS token but names none"};

  out.raw_ = AddedTokens(std::move(raw));
  out.normalized_ = AddedTokens(std::move(normalized));
  for (const AddedTokens* list : {&out.raw_, &out.normalized_})
    if (const AddedToken* twice = list->duplicate()) return Error{"added token given twice: " + excerpt(twice->content)};
  out.bpe_ = std::move(bpe);
  out.nfc_ = nfc;
  out.adds_bos_ = adds_bos;
  out.bos_id_ = bos_id;
  if (eos_id) out.eos_ids_.push_back(*eos_id);
  for (const std::string_view mark : kEndMarks) {
    const auto id = out.token_id(mark);
    if (id && out.is_special(*id) && id != eos_id) out.eos_ids_.push_back(*id);
  }
  return out;
}

}
