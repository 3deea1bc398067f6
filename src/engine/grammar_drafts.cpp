// Forced bytes become tokens as the tokenizer would spell them. Where a model spells them otherwise the guess is wrong, nothing
// else.
#include "engine/grammar_drafts.h"

#include "text/unicode.h"

namespace hunch {
namespace {

constexpr size_t kForcedBytes = 256;
// Forced guesses for which a drafter's round is left out.
constexpr int kWorthARound = 3;

// Adds guesses behind `place`, the last node of the chain; `most`: nodes of the tree then.
void extend(GrammarMask& grammar, const Tokenizer& tokenizer, int place, int most, DraftTree& tree) {
  most = std::min(most, int(tree.parents.size()));
  if (tree.size >= most) return;
  std::string text = grammar.forced(place, kForcedBytes);
  if (const auto cut = first_invalid_utf8(text)) text.resize(*cut);  // ends inside a character
  if (text.empty()) return;
  const auto ids = tokenizer.encode(text, {.parse_special = false, .add_bos = false});
  if (!ids.ok()) return;
  for (const int32_t id : ids.value()) {
    place = tree.size < most ? grammar.step(place, id) : -1;
    if (place < 0) return;
    tree.parents[tree.size] = tree.size - 1;
    tree.tokens(tree.size++) = id;
  }
}

}

void keep_to(GrammarMask& grammar, const Tokenizer& tokenizer, int most, DraftTree& tree) {
  if (tree.in_flight || (tree.size > 0 && tree.law == DraftLaw::Given)) return;
  if (tree.size == 0) tree.law = DraftLaw::Point;
  std::vector<int> places(tree.size), moved(tree.size, -1);  // of each node; where it stands now
  int kept = 0;
  bool chain = true;
  for (int node = 0; node < tree.size; ++node) {
    const int parent = tree.parents[node];
    if (parent >= 0 && moved[parent] < 0) continue;
    const int place = grammar.step(parent < 0 ? GrammarMask::kCommitted : places[parent], tree.tokens(node));
    if (place < 0) continue;
    places[node] = place, moved[node] = kept;
    const int to = parent < 0 ? -1 : moved[parent];
    chain = chain && to == kept - 1;
    tree.tokens(kept) = tree.tokens(node), tree.parents[kept] = to;
    ++kept;
  }
  tree.size = kept;
  if (!chain) return;
  int last = GrammarMask::kCommitted;
  for (int node = 0; node < kept; ++node) last = grammar.step(last, tree.tokens(node));
  extend(grammar, tokenizer, last, most, tree);
}

void refuse_forbidden(GrammarMask& grammar, const DraftTree& tree, View<int32_t, 1> choices) {
  std::vector<int> places{GrammarMask::kCommitted};  // by row; -1: the target did not come here
  for (int node = 0; node < tree.size; ++node) {
    const int parent = tree.parents[node] + 1;
    const bool kept = places[parent] >= 0 && choices(parent) == tree.tokens(node);
    places.push_back(kept ? grammar.step(places[parent], tree.tokens(node)) : -1);
    if (kept && (places.back() < 0 || !grammar.may_say(places.back(), choices(node + 1)))) choices(node + 1) = -1;
  }
}

bool jump_ahead(GrammarMask& grammar, const Tokenizer& tokenizer, int most, DraftTree& tree) {
  tree.size = 0;
  extend(grammar, tokenizer, GrammarMask::kCommitted, most, tree);
  if (tree.size < std::min(most, kWorthARound)) return tree.size = 0, false;
  tree.law = DraftLaw::Point, tree.in_flight = false, tree.passes = 0;
  tree.laws.clear();
  return true;
}

}
