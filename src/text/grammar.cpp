// The only file that knows xgrammar: its exceptions end here, and so do its warnings, each of which says that a
// constraint was left out.
#include "text/grammar.h"

#include <dlpack/dlpack.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/clock.h"
#include "base/failure.h"
#include "text/dialects.h"
#include "text/excerpt.h"
#include "text/grammar_check.h"
#include "text/grammar_language.h"
#include "text/json_guard.h"
#include "text/tokenizer.h"

namespace xgrammar {
namespace {

// Of the compilation that runs on this thread.
thread_local std::string first_warning;
thread_local double stop_at = 0;  // the thread's processor time, seconds; 0: never

}

// What xgrammar calls: in place of its own log, and in its long loops (scripts/xgrammar.patch).
[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message);
void LogMessageImpl(const std::string&, int, int level, const std::string& message);
void CheckStopped();

void LogFatalImpl(const std::string&, int, const std::string& message) { throw std::runtime_error(message); }

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (level >= kWarning && first_warning.empty()) first_warning = message;
}

void CheckStopped() {
  thread_local uint8_t calls = 0;
  if (stop_at > 0 && ++calls == 0 && hunch::thread_seconds() > stop_at) throw std::runtime_error("stopped");
}

}

namespace hunch {
namespace {

using Kind = StructuredOutput::Kind;

// White space between the parts of a JSON text. Without a bound a model may indent for ever.
constexpr int kMostWhitespace = 20;

// Of what this thread compiles meanwhile.
struct Deadline {
  explicit Deadline(double seconds) { xgrammar::stop_at = thread_seconds() + seconds; }
  ~Deadline() { xgrammar::stop_at = 0; }
  static bool over() { return thread_seconds() > xgrammar::stop_at; }
};

class Compiled final : public CompiledGrammar {
 public:
  // `suspicious`: what a JsonGuard must look at; null: the output is no JSON.
  Compiled(xgrammar::CompiledGrammar made, std::shared_ptr<const std::vector<int32_t>> suspicious)
      : grammar(std::move(made)),
        suspicious(std::move(suspicious)),
        info_(grammar.GetTokenizerInfo()),
        bytes_(grammar.MemorySizeBytes()) {}
  size_t bytes() const override { return bytes_; }
  const std::vector<std::string>& tokens() const { return info_.GetDecodedVocab(); }
  const xgrammar::CompiledGrammar grammar;
  const std::shared_ptr<const std::vector<int32_t>> suspicious;

 private:
  xgrammar::TokenizerInfo info_;
  size_t bytes_;
};

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::JsonObject: return "json_object";
    case Kind::JsonSchema: return "json_schema";
    case Kind::Regex: return "regex";
    case Kind::Choice: return "choice";
    case Kind::Grammar: return "grammar";
    case Kind::None: break;
  }
  return "none";
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\', out += c;
    else if (uint8_t(c) < 0x20 || c == 0x7f) out += fmt::format("\\x{:02x}", unsigned(uint8_t(c)));
    else out += c;
  }
  return out + "\"";
}

std::string key_of(const StructuredOutput& wanted) {
  std::string key = name_of(wanted.kind);
  key += ' ';
  if (wanted.kind == Kind::Choice)
    for (const std::string& choice : wanted.choices) key += fmt::format("{} {}", choice.size(), choice);
  else if (wanted.kind != Kind::JsonObject) key += wanted.text;
  return key;
}

xgrammar::CompiledGrammar compile_now(xgrammar::GrammarCompiler& compiler, const StructuredOutput& wanted) {
  const auto schema = [&](const std::string& text, bool strict) {
    return compiler.CompileJSONSchema(text, true, std::nullopt, std::nullopt, strict, kMostWhitespace);
  };
  switch (wanted.kind) {
    case Kind::JsonSchema: return schema(open_schema(wanted.text), true);
    case Kind::Regex: return compiler.CompileRegex(plain_regex(wanted.text));
    case Kind::Grammar: return compiler.CompileGrammar(plain_ebnf(wanted.text));
    case Kind::Choice: {
      std::string grammar = "root ::= ";
      for (size_t i = 0; i < wanted.choices.size(); ++i) grammar += (i > 0 ? " | " : "") + quoted(wanted.choices[i]);
      return compiler.CompileGrammar(grammar);
    }
    case Kind::JsonObject:
    case Kind::None: break;
  }
  return schema(R"({"type": "object"})", false);
}

// The schema of one string.
std::string string_of(const std::string& pattern) { return nlohmann::json{{"type", "string"}, {"pattern", pattern}}.dump(); }

// One line of what the library says, without its own checks' wording.
std::string first_line(std::string text) {
  if (const size_t at = text.find(" is false: "); at != std::string::npos) text.erase(0, at + 11);
  if (const size_t end = text.find('\n'); end != std::string::npos) text.resize(end);
  while (!text.empty() && (text.back() == ' ' || text.back() == '.')) text.pop_back();
  return text;
}

}

struct GrammarCompiler::Vocabulary {
  Vocabulary(const std::vector<std::string>& tokens, const std::vector<int32_t>& end_ids)
      : info(tokens, xgrammar::VocabType::RAW, int(tokens.size()), end_ids) {
    auto found = std::make_shared<std::vector<int32_t>>();
    for (size_t id = 0; id < tokens.size(); ++id)
      if (JsonGuard::suspicious(tokens[id])) found->push_back(int32_t(id));
    suspicious = std::move(found);
  }
  xgrammar::TokenizerInfo info;
  std::shared_ptr<const std::vector<int32_t>> suspicious;
};

bool grammars_available() { return true; }

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, int64_t vocab, std::vector<int32_t> end_ids, GrammarLimits limits)
    : vocab_(vocab), end_ids_(std::move(end_ids)), limits_(limits) {
  std::erase_if(end_ids_, [&](int32_t id) { return id < 0 || id >= vocab; });
  std::vector<std::string> tokens(vocab);
  // An empty token is one that no output has.
  for (int32_t id = 0; id < std::min<int64_t>(vocab, tokenizer.vocab_size()); ++id)
    if (!tokenizer.is_special(id) && std::ranges::find(end_ids_, id) == end_ids_.end())
      tokens[id] = std::string(tokenizer.token_bytes(id));
  vocabulary_ = std::make_shared<const Vocabulary>(tokens, end_ids_);
}

Result<SharedGrammar> GrammarCompiler::compile(const StructuredOutput& wanted) {
  HUNCH_CHECK(wanted.kind != Kind::None);
  const std::string key = key_of(wanted);
  {
    const std::lock_guard lock(mutex_);
    const auto it = std::ranges::find_if(cache_, [&](const Kept& kept) { return kept.key == key; });
    if (it != cache_.end()) {
      cache_.splice(cache_.begin(), cache_, it);
      return it->grammar;
    }
  }
  std::set<std::string> patterns;
  HUNCH_OK(check_structured(wanted, &patterns));
  HUNCH_TRY(auto grammar, compile_within_limits(wanted, patterns));
  const char* name = name_of(wanted.kind);
  if (grammar->bytes() > limits_.grammar_bytes)
    return usage_error("{}: schema_too_complex: {} MiB compiled; at most {} are possible", name, grammar->bytes() >> 20,
        limits_.grammar_bytes >> 20);
  keep(key, grammar);
  return grammar;
}

Result<SharedGrammar> GrammarCompiler::compile_within_limits(
    const StructuredOutput& wanted, const std::set<std::string>& patterns) {
  SharedGrammar made;
  std::string failed;
  xgrammar::first_warning.clear();
  const Deadline deadline(limits_.seconds);
  try {
    xgrammar::GrammarCompiler compiler(vocabulary_->info, 1, false);
    const bool json = wanted.kind == Kind::JsonObject || wanted.kind == Kind::JsonSchema;
    auto compiled = compile_now(compiler, wanted);
    for (const std::string& pattern : patterns)
      if (leaves_string(xgrammar::Grammar::FromJSONSchema(string_of(pattern)).ToString()))
        failed = fmt::format(
            "the pattern {} may give a raw quotation mark, backslash or control character, which no JSON string "
            "has; leave them out, as by [^\"\\\\] in place of .",
            excerpt(pattern));
    if (!has_output(compiled.GetGrammar().ToString())) failed = "no output fits it: its rules never come to an end";
    made = std::make_shared<const Compiled>(std::move(compiled), json ? vocabulary_->suspicious : nullptr);
    if (!xgrammar::first_warning.empty()) failed = "not supported to the letter: " + first_line(xgrammar::first_warning);
    for (const std::string_view instead :
        {"; falling back to anyOf semantics", " and is ignored", "; ignoring multipleOf"})  // not here
      if (const size_t at = failed.find(instead); at != failed.npos) failed.erase(at, instead.size());
    std::vector<uint32_t> mask(GrammarState::mask_words(vocab_));  // the first may take longer than all else
    if (failed.empty()) GrammarState(made, *this).fill_mask(mask);
    if (failed.empty() && std::ranges::all_of(mask, [](uint32_t word) { return word == 0; }))
      failed = "no output of this model's tokens fits it";
  } catch (const std::exception& e) {
    failed = first_line(e.what());
    if (failed.empty()) failed = "it could not be read";
  }
  if (deadline.over()) failed = fmt::format("schema_too_complex: compiling it takes longer than {} s", limits_.seconds);
  if (!failed.empty()) return usage_error("{}: {}", name_of(wanted.kind), failed);
  return made;
}

void GrammarCompiler::keep(const std::string& key, const SharedGrammar& grammar) {
  const std::lock_guard lock(mutex_);
  cache_.push_front({key, grammar});
  cached_bytes_ += grammar->bytes() + key.size();
  while (cached_bytes_ > limits_.cache_bytes && cache_.size() > 1) {
    cached_bytes_ -= cache_.back().grammar->bytes() + cache_.back().key.size();
    cache_.pop_back();
  }
}

size_t GrammarCompiler::cached_bytes() const {
  const std::lock_guard lock(mutex_);
  return cached_bytes_;
}

struct GrammarState::Matcher {
  explicit Matcher(SharedGrammar of)
      : grammar(std::move(of)),
        compiled(static_cast<const Compiled&>(*grammar)),
        tokens(compiled.tokens()),
        matcher(compiled.grammar) {}
  SharedGrammar grammar;
  const Compiled& compiled;
  const std::vector<std::string>& tokens;
  xgrammar::GrammarMatcher matcher;
  std::vector<JsonGuard::State> guards{JsonGuard::kOutside};  // behind each token taken, if the output is JSON

  bool guarded() const { return compiled.suspicious != nullptr; }
  void drop_refused(std::span<uint32_t> mask) const {
    const JsonGuard::State state = guards.back();
    const auto check = [&](int32_t id) {
      uint32_t& word = mask[id / 32];
      const uint32_t bit = 1u << (id % 32);
      if (word & bit && JsonGuard::next(state, tokens[id]) == JsonGuard::kRefused) word &= ~bit;
    };
    if (state <= JsonGuard::kInside) {
      for (const int32_t id : *compiled.suspicious) check(id);
      return;
    }
    for (size_t word = 0; word < mask.size(); ++word)  // inside an escape the grammar allows little
      for (uint32_t rest = mask[word]; rest != 0; rest &= rest - 1) check(int32_t(word * 32) + std::countr_zero(rest));
  }

  // Takes one more byte, if it may follow.
  bool take(uint8_t byte) {
    const JsonGuard::State guard = guarded() ? JsonGuard::next(guards.back(), byte) : JsonGuard::kOutside;
    if (guard == JsonGuard::kRefused || !matcher.AcceptString(std::string(1, char(byte)))) return false;
    if (guarded()) guards.push_back(guard);
    return true;
  }
  void give_back(int64_t steps) {
    matcher.Rollback(int(steps));
    if (guarded()) guards.resize(guards.size() - steps);
  }
  bool may_follow(int byte) {
    if (!take(uint8_t(byte))) return false;
    return give_back(1), true;
  }
  bool free_text() {
    int found = 0;
    for (const char byte : std::string_view("ab12 \n\"AB_-}],"))
      if (may_follow(byte) && ++found == 2) return true;
    return false;
  }
  // The one byte that may follow, or -1. One of ASCII is believed to be alone.
  int only_byte() {
    if (free_text()) return -1;
    int only = -1;
    for (int byte = '\t'; byte < 256 && (byte < 128 || only < 0 || only >= 128); ++byte)
      if (may_follow(byte) && std::exchange(only, byte) >= 0) return -1;
    return only;
  }
};

GrammarState::GrammarState(SharedGrammar grammar, const GrammarCompiler& compiler)
    : GrammarState(std::move(grammar), compiler.vocab(), compiler.end_ids()) {}
GrammarState::GrammarState(SharedGrammar grammar, int64_t vocab, std::vector<int32_t> end_ids)
    : matcher_(std::make_unique<Matcher>(std::move(grammar))), vocab_(vocab), end_ids_(std::move(end_ids)) {}
GrammarState::~GrammarState() = default;
GrammarState::GrammarState(GrammarState&&) noexcept = default;

// The end is ours: the automaton sees what stands before it and nothing else, so that rolling back over it is plain.
bool GrammarState::accept(int32_t token) {
  if (token < 0 || token >= vocab_) return false;
  const bool end = std::ranges::find(end_ids_, token) != end_ids_.end();
  if (end ? ends_ == 0 && !complete() : ends_ > 0) return false;
  if (end) return ++ends_, ++taken_, true;
  JsonGuard::State guard = JsonGuard::kOutside;
  if (matcher_->guarded()) {
    guard = JsonGuard::next(matcher_->guards.back(), matcher_->tokens[token]);
    if (guard == JsonGuard::kRefused) return false;
  }
  try {
    if (!matcher_->matcher.AcceptToken(token)) return false;
  } catch (const std::exception&) {
    return false;  // closed rather than open
  }
  if (matcher_->guarded()) matcher_->guards.push_back(guard);
  return ++taken_, true;
}

void GrammarState::rollback(int64_t count) {
  HUNCH_CHECK(count >= 0 && count <= taken_);
  taken_ -= count;
  const int64_t ends = std::min(count, ends_);
  ends_ -= ends;
  if (count > ends) matcher_->give_back(count - ends);
}

void GrammarState::reset() {
  matcher_->matcher.Reset();
  matcher_->guards.assign(1, JsonGuard::kOutside);
  taken_ = ends_ = 0;
}

void GrammarState::fill_mask(std::span<uint32_t> words) {
  HUNCH_CHECK(words.size() == mask_words(vocab_));
  std::ranges::fill(words, 0u);
  if (ends_ == 0) {
    int64_t shape = std::ssize(words);
    DLTensor tensor{
        .data = words.data(),
        .device = {kDLCPU, 0},
        .ndim = 1,
        .dtype = xgrammar::GetBitmaskDLType(),
        .shape = &shape,
        .strides = nullptr,
        .byte_offset = 0,
    };
    try {
      matcher_->matcher.FillNextTokenBitmask(&tensor);
    } catch (const std::exception&) {
      std::ranges::fill(words, 0u);  // closed rather than open: the request ends with an error
      return;
    }
    if (vocab_ % 32) words.back() &= (1u << (vocab_ % 32)) - 1;
    if (matcher_->guarded()) matcher_->drop_refused(words);
  }
  const bool may_end = ends_ > 0 || complete();
  for (const int32_t id : end_ids_) {
    uint32_t& word = words[id / 32];
    const uint32_t bit = 1u << (id % 32);
    word = may_end ? word | bit : word & ~bit;
  }
}

bool GrammarState::complete() const { return matcher_->matcher.IsCompleted(); }

bool GrammarState::free_text() {
  try {
    return ends_ == 0 && matcher_->free_text();
  } catch (const std::exception&) { return false; }
}

// Without masks, which take a hundred times as long. The library's own search has no end where the grammar has none.
std::string GrammarState::forced(size_t most_bytes) {
  std::string out;
  try {
    while (out.size() < most_bytes && ends_ == 0 && !complete()) {
      const int next = matcher_->only_byte();
      if (next < 0 || !matcher_->take(uint8_t(next))) break;
      out += char(next);
    }
  } catch (const std::exception&) {}  // guesses only
  if (!out.empty()) matcher_->give_back(std::ssize(out));
  return out;
}

}
