// Stands in for grammar.cpp in a build without xgrammar: every request for structured output is refused, none is ignored.
#include "text/grammar.h"

namespace hunch {

struct GrammarCompiler::Vocabulary {};
struct GrammarState::Matcher {};

bool grammars_available() { return false; }

GrammarCompiler::GrammarCompiler(const Tokenizer&, int64_t vocab, std::vector<int32_t> end_ids, GrammarLimits limits)
    : vocab_(vocab), end_ids_(std::move(end_ids)), limits_(limits) {}
Result<SharedGrammar> GrammarCompiler::compile(const StructuredOutput&) {
  return usage_error("structured output is not in this build: run scripts/third_party, then build again");
}
size_t GrammarCompiler::cached_bytes() const { return 0; }

// Without a compiled grammar there is no state.
GrammarState::GrammarState(SharedGrammar, const GrammarCompiler&) { HUNCH_CHECK(grammars_available()); }
GrammarState::~GrammarState() = default;
GrammarState::GrammarState(GrammarState&&) noexcept = default;
bool GrammarState::accept(int32_t) { return false; }
void GrammarState::rollback(int64_t) {}
void GrammarState::reset() {}
void GrammarState::fill_mask(std::span<uint32_t> words) { HUNCH_CHECK(words.size() == mask_words(vocab_)); }
bool GrammarState::complete() const { return false; }
std::string GrammarState::forced(size_t) { return {}; }

}
