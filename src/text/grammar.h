// Grammar: what the continuation of a request may look like, over the tokens of one vocabulary. GrammarCompiler makes
// CompiledGrammar from a StructuredOutput, once for all requests that ask for it; GrammarState walks it, one per sequence. The
// automaton is xgrammar (Dong et al., MLSys 2025), which grammar.cpp alone knows; a build without it refuses. Called by the
// engine: compile() on the caller's thread, the state on the engine's.
#pragma once

#include <list>
#include <mutex>
#include <set>
#include <span>

#include "base/result.h"
#include "hunch/hunch.h"

namespace hunch {

class Tokenizer;

// Whether this build can compile grammars at all.
bool grammars_available();

// Immutable, shared by all states and the cache.
class CompiledGrammar {
 public:
  virtual ~CompiledGrammar() = default;
  virtual size_t bytes() const = 0;  // about
};
using SharedGrammar = std::shared_ptr<const CompiledGrammar>;

// What compiling may cost. The defaults are what a server can bear per request.
struct GrammarLimits {
  double seconds = 1;                       // of compiling, processor time
  size_t grammar_bytes = size_t(64) << 20;  // of one compiled grammar
  size_t cache_bytes = size_t(256) << 20;   // of all that are kept
};

// Compiles for one vocabulary. Thread-safe.
class GrammarCompiler {
 public:
  // Token bytes are raw (Tokenizer::token_bytes); special tokens and ids past the tokenizer's are never part of an output.
  // `end_ids`: those that may stand behind a complete output, and nowhere else. `vocab`: columns of the model's logits.
  GrammarCompiler(const Tokenizer&, int64_t vocab, std::vector<int32_t> end_ids, GrammarLimits = {});
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  // Errors (usage): not well-formed, a construct that could not be kept to the letter, nothing that fits it, too complex for the
  // limits. The message names the place where that is known.
  Result<SharedGrammar> compile(const StructuredOutput&);

  int64_t vocab() const { return vocab_; }
  const std::vector<int32_t>& end_ids() const { return end_ids_; }
  size_t cached_bytes() const;

 private:
  struct Vocabulary;  // xgrammar's view of the tokens
  struct Kept {
    std::string key;
    SharedGrammar grammar;
  };
  Result<SharedGrammar> compile_within_limits(const StructuredOutput&, const std::set<std::string>& patterns);
  void keep(const std::string& key, const SharedGrammar&);

  int64_t vocab_;
  std::vector<int32_t> end_ids_;
  GrammarLimits limits_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  mutable std::mutex mutex_;  // guards what follows
  std::list<Kept> cache_;     // most recently used first
  size_t cached_bytes_ = 0;
};

// Where one output stands in its grammar. Not thread-safe.
class GrammarState {
 public:
  GrammarState(SharedGrammar, const GrammarCompiler&);
  GrammarState(SharedGrammar, int64_t vocab, std::vector<int32_t> end_ids);
  ~GrammarState();
  GrammarState(GrammarState&&) noexcept;

  // Takes the next token; false: the grammar forbids it, and nothing has changed. Ids outside the vocabulary are forbidden.
  // Behind the end only end ids are taken.
  bool accept(int32_t token);
  // Forgets the last `count` tokens taken.
  void rollback(int64_t count);
  void reset();
  int64_t taken() const { return taken_; }

  static size_t mask_words(int64_t vocab) { return size_t((vocab + 31) / 32); }
  // Bit id % 32 of word id / 32: whether accept(id) would hold. `words` has mask_words(vocab) of them.
  void fill_mask(std::span<uint32_t> words);
  bool complete() const;                         // the output may end here
  bool terminated() const { return ends_ > 0; }  // an end id was taken
  bool free_text();                              // many tokens may follow
  // Bytes that every continuation begins with, `most_bytes` of them at most; empty where there is a choice.
  std::string forced(size_t most_bytes);

 private:
  struct Matcher;
  std::unique_ptr<Matcher> matcher_;
  int64_t vocab_;
  std::vector<int32_t> end_ids_;
  int64_t taken_ = 0, ends_ = 0;  // ends_: how many of them are end ids
};

}
