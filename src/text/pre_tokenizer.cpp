// The original patterns run on Oniguruma, where \s is exactly Unicode's White_Space; PCRE2's adds U+180E, so
// our spelling of each pattern writes the class out. All else means the same in both.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pre_tokenizer.h"

#include <pcre2.h>

#include "base/failure.h"
#include "text/unicode.h"

namespace hunch {
namespace {

using enum PreFamily;

#define HUNCH_SPACES R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})"

// Words of o200k: upper case before lower case, contractions at their end.
#define HUNCH_CASED \
  R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)" \
  R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|)"

struct Pattern {
  PreFamily family;
  std::string_view published, ours;
};

// Every pattern matches at every position of every text: each character is a letter, a number, white space or other.
constexpr Pattern kPatterns[] = {
    {Gpt2, R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
        R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^)" HUNCH_SPACES R"(\p{L}\p{N}]+|[)" HUNCH_SPACES
        R"(]+(?![^)" HUNCH_SPACES R"(])|[)" HUNCH_SPACES R"(]+)"},
    {Llama3,
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^)" HUNCH_SPACES
        R"(\p{L}\p{N}]+[\r\n]*|[)" HUNCH_SPACES R"(]*[\r\n]+|[)" HUNCH_SPACES R"(]+(?![^)" HUNCH_SPACES R"(])|[)" HUNCH_SPACES
        R"(]+)"},
    {Qwen2, R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^)" HUNCH_SPACES R"(\p{L}\p{N}]+[\r\n]*|[)" HUNCH_SPACES
        R"(]*[\r\n]+|[)" HUNCH_SPACES R"(]+(?![^)" HUNCH_SPACES R"(])|[)" HUNCH_SPACES R"(]+)"},
    {O200k, HUNCH_CASED R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
        HUNCH_CASED R"( ?[^)" HUNCH_SPACES R"(\p{L}\p{N}]+[\r\n/]*|[)" HUNCH_SPACES R"(]*[\r\n]+|[)" HUNCH_SPACES
                    R"(]+(?![^)" HUNCH_SPACES R"(])|[)" HUNCH_SPACES R"(]+)"},
};

#undef HUNCH_CASED
#undef HUNCH_SPACES

// qwen2: Hugging Face's tokenizers of the family apply NFC, GGUF has no key for it and llama.cpp does not do it. The model was
// trained behind NFC, so we follow Hugging Face. The distilled DeepSeek-R1 models share the pattern but publish no normalizer.
constexpr GgufPre kGgufPres[] = {{"default", Gpt2, false, false, false}, {"gpt-2", Gpt2, false, false, false},
    {"gpt2", Gpt2, false, false, false}, {"phi-2", Gpt2, false, false, false}, {"llama-bpe", Llama3, false, true, true},
    {"llama3", Llama3, false, true, true}, {"llama-v3", Llama3, false, true, true}, {"qwen2", Qwen2, true, false, false},
    {"deepseek-r1-qwen", Qwen2, false, false, false}, {"gpt-4o", O200k, false, false, false}};

// The patterns need a handful of frames and, for white space, as many steps as the run is long. The limits hold without JIT too.
constexpr uint32_t kMatchLimit = 200'000'000, kDepthLimit = 1000, kHeapLimitKib = 16 << 10;

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[120] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}

std::optional<PreFamily> pre_family_of_pattern(std::string_view pattern) {
  for (const Pattern& p : kPatterns)
    if (p.published == pattern) return p.family;
  return {};
}

const GgufPre* find_gguf_pre(std::string_view pre) {
  for (const GgufPre& p : kGgufPres)
    if (p.name == pre) return &p;
  return nullptr;
}

std::string known_gguf_pre() {
  std::string out;
  for (const GgufPre& p : kGgufPres) out += (out.empty() ? "" : ", ") + std::string(p.name);
  return out;
}

struct PreTokenizer::Code {
  pcre2_code* code = nullptr;
  pcre2_match_context* limits = nullptr;
  bool jit = false;
  ~Code() {
    pcre2_match_context_free(limits);
    pcre2_code_free(code);
  }
};

PreTokenizer::PreTokenizer() : code_(std::make_unique<Code>()) {}
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

Result<PreTokenizer> PreTokenizer::make(PreFamily family) {
  PreTokenizer pre;
  for (const Pattern& p : kPatterns) {
    if (p.family != family) continue;
    int error = 0;
    PCRE2_SIZE at = 0;
    pre.code_->code = pcre2_compile(
        reinterpret_cast<PCRE2_SPTR>(p.ours.data()), p.ours.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &at, nullptr);
    if (!pre.code_->code) return failure("PCRE2 cannot compile a split pattern: {} (at {})", pcre2_message(error), at);
  }
  pre.code_->limits = pcre2_match_context_create(nullptr);
  if (!pre.code_->limits) return Error{"out of memory for a split pattern"};
  pcre2_set_match_limit(pre.code_->limits, kMatchLimit);
  pcre2_set_depth_limit(pre.code_->limits, kDepthLimit);
  pcre2_set_heap_limit(pre.code_->limits, kHeapLimitKib);
  pre.code_->jit = pcre2_jit_compile(pre.code_->code, PCRE2_JIT_COMPLETE) == 0;  // else interpreted: hardened systems forbid JIT
  return pre;
}

struct PreTokenizer::Cutter::State {
  const Code* code;
  pcre2_match_data* match;
  PCRE2_SIZE* ends;
};

PreTokenizer::Cutter::Cutter(const PreTokenizer& pre) : state_(std::make_unique<State>()) {
  state_->code = pre.code_.get();
  state_->match = pcre2_match_data_create(1, nullptr);
  state_->ends = state_->match ? pcre2_get_ovector_pointer(state_->match) : nullptr;
}

PreTokenizer::Cutter::~Cutter() { pcre2_match_data_free(state_->match); }

Result<size_t> PreTokenizer::Cutter::next(std::string_view text, size_t begin) {
  if (!state_->match) return Error{"out of memory for splitting text into words"};
  const Code& code = *state_->code;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int found = code.jit
      ? pcre2_jit_match(code.code, subject, text.size(), begin, 0, state_->match, code.limits)
      : pcre2_match(code.code, subject, text.size(), begin, PCRE2_NO_UTF_CHECK, state_->match, code.limits);
  if (found < 0 && found != PCRE2_ERROR_NOMATCH)
    return failure("PCRE2 cannot split the text into words: {} (at byte {})", pcre2_message(found), begin);
  // An empty or missing match cannot happen with these patterns; a single character keeps the loop moving.
  if (found < 0 || state_->ends[1] <= begin) return begin + utf8_step(text.substr(begin)).length;
  return state_->ends[1];
}

}
