#include "engine/vocab_match.h"

#include <algorithm>
#include <unordered_map>

#include "base/failure.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

// Ids that have a token and a column.
int32_t num_tokens(const Vocabulary& v) { return int32_t(std::min<int64_t>(v.tokenizer.vocab_size(), v.columns)); }

Status check_same(const Vocabulary& target, const Vocabulary& draft) {
  const int32_t common = std::min(num_tokens(target), num_tokens(draft));
  for (int32_t id = 0; id < common; ++id) {
    const std::string_view a = target.tokenizer.token_bytes(id), b = draft.tokenizer.token_bytes(id);
    if (a.empty() || b.empty() || a == b) continue;  // holes are padding, too
    return failure(
        "{}: not the target's vocabulary: token {} is {} there and {} in {}; use a draft model of the target's family, "
        "or draft vocabulary mode \"intersection\", which guesses the tokens that both have",
        draft.source, id, excerpt(b), excerpt(a), target.source);
  }
  return {};
}

class Matcher {
 public:
  Matcher(const Vocabulary& target, const Vocabulary& draft) : target_(target), draft_(draft) {
    for (int32_t id = 0; id < num_tokens(draft); ++id)
      if (const auto bytes = draft.tokenizer.token_bytes(id); !bytes.empty()) ids_.emplace(bytes, id);
    const auto& ends = draft.tokenizer.eos_ids();
    if (!ends.empty() && ends[0] < draft.columns) end_ = ends[0];
  }

  VocabMap map(bool by_id) const {
    VocabMap out;
    out.target_ids.assign(draft_.columns, -1);
    out.own_ids.assign(target_.columns, end_);
    for (int32_t id = 0; id < num_tokens(target_); ++id) {
      const std::string_view bytes = target_.tokenizer.token_bytes(id);
      if (bytes.empty()) continue;
      const int32_t own = by_id ? id : id_of(bytes);
      if (own >= 0 && own < num_tokens(draft_) && draft_.tokenizer.token_bytes(own) == bytes) {
        int32_t& mapped = out.target_ids[own];
        if (mapped < 0) mapped = id;  // of two ids with the same bytes the first is guessed
        out.own_ids[id] = own;
      } else {
        out.own_ids[id] = instead_of(id);
      }
    }
    return out;
  }

 private:
  int32_t id_of(std::string_view bytes) const {
    const auto found = ids_.find(bytes);
    return found == ids_.end() ? -1 : found->second;
  }
  // What comes next depends most on how the text ends.
  int32_t instead_of(int32_t id) const {
    if (target_.tokenizer.is_special(id)) return end_;
    std::string_view rest = target_.tokenizer.token_bytes(id);
    for (; !rest.empty(); rest.remove_prefix(1))
      if (const int32_t own = id_of(rest); own >= 0) return own;
    return end_;
  }

  const Vocabulary &target_, &draft_;
  std::unordered_map<std::string_view, int32_t> ids_;  // the first of each spelling
  int32_t end_ = 0;
};

}

Result<VocabMap> match_vocabularies(const Vocabulary& target, const Vocabulary& draft, const std::string& mode) {
  if (mode != "same" && mode != "intersection")
    return usage_error("unknown draft vocabulary mode {}; known: same, intersection", excerpt(mode));
  if (mode == "same") HUNCH_OK(check_same(target, draft));
  VocabMap map = Matcher(target, draft).map(mode == "same");
  const auto guessed = [](int32_t id) { return id >= 0; };
  if (std::ranges::none_of(map.target_ids, guessed))
    return usage_error(
        "{}: has no token in common with {}; use a draft model of the target's family", draft.source, target.source);
  if (target.columns != draft.columns) return map;
  for (int32_t id = 0; id < int32_t(draft.columns); ++id)
    if (map.target_ids[id] != id) return map;
  return VocabMap{};
}

}
