// Methods: every way to draft, and kinds of requests that are hard on it, for comparisons with plain decoding.
#pragma once

#include "runs.h"

namespace hunch::test {

struct Method {
  const char* proposer;
  int tree_tokens = 0;
  const char* policy = "vegas";
  bool thinned = false;  // draft passes read chosen blocks (--verify drafts)
};
inline constexpr Method kMethods[] = {{"auto"}, {"ngram"}, {"suffix"}, {"suffix", 6}, {"cascade"}, {"self"}, {"self", 8},
    {"ngram", 5}, {"staged"}, {"self", 6, "quest"}, {"cascade", 4}, {"self", 0, "vegas", true}, {"staged", 0, "vegas", true},
    {"cascade", 0, "vegas", true}, {"self", 6, "vegas", true}, {"auto", 0, "vegas", true}, {"auto", 7}};
inline constexpr int kNumMethods = int(std::size(kMethods));

inline std::string name_of(const Method& method) {
  return fmt::format("{} tree {} {}{}", method.proposer, method.tree_tokens, method.policy, method.thinned ? " thinned" : "");
}

// Settings that find something in short texts of models that know nothing.
inline void set_method(Request& request, const Method& method, int gamma) {
  SpeculationOptions& o = request.speculation;
  guess(request, method.proposer, gamma, method.tree_tokens);
  o.policy = method.policy, o.rule = "match", o.ratio = 0.3, o.min_tokens = 24;
  o.ngram_min = 1, o.ngram_max = 3, o.suffix_factor = 3;
  o.sparse = {};
  if (method.thinned) o.sparse = {.drafts = true, .ratio = 0.3, .dense_len = 24, .block = 8};
}

// The first `shared` tokens are the same for all seeds; then phrases of the beginning come back, with noise between them.
inline Ints phrases(int len, int shared, uint64_t seed) {
  auto prompt = random_prompt(len, 256, 11);
  const auto noise = random_prompt(len, 256, 100 + seed);
  for (int at = shared; at < len; ++at) prompt[at] = at % 30 < 10 ? noise[at] : prompt[at % 30];
  return prompt;
}

// Samplings and rules of logits and ends, some made from what plain decoding says, so that they have work to do.
inline constexpr int kNumKinds = 8;
inline Request request_of_kind(Engine& plain, int kind, Ints prompt, int64_t max_tokens) {
  auto out = ask(std::move(prompt), max_tokens);
  SamplingOptions& s = out.sampling;
  s.seed = 70u + kind;
  if (kind % 2) s.temperature = 0.8;
  const Generation said = generate(plain, out);
  switch (kind % kNumKinds) {
    case 2: s.presence_penalty = 0.7, s.frequency_penalty = 0.3, s.repetition_penalty = 1.2; break;
    case 3: s.logit_bias = {{said.tokens[3], -100.0f}, {said.tokens[9], -1.5f}, {17, 2.0f}}; break;
    case 4: s.bad_words = {{said.tokens[10], said.tokens[11]}, {said.tokens[5]}}; break;
    case 5: s.min_tokens = 30, out.stop_ids = {said.tokens[4], said.tokens[33]}; break;
    case 6: {  // the text of a few tokens from the middle on
      const auto starts = [&](size_t at) { return (uint8_t(said.text[at]) & 0xC0) != 0x80; };
      size_t from = said.text.size() / 2, end = said.text.size() / 2 + 3;
      while (from > 0 && !starts(from)) --from;
      while (end < said.text.size() && !starts(end)) ++end;
      out.stop = {"never said", said.text.substr(from, end - from)};
      break;
    }
    case 7: s.logprobs = 3, s.top_k = 40, s.top_p = 0.95; break;
    default: break;
  }
  return out;
}

// All that a caller sees, log-probabilities bit for bit.
inline void expect_same_output(const Generation& got, const Generation& plain, const std::string& what) {
  SCOPED_TRACE(what);
  EXPECT_TRUE(got.lossless);
  ASSERT_EQ(got.tokens, plain.tokens);
  EXPECT_EQ(got.text, plain.text);
  EXPECT_EQ(got.finish, plain.finish);
  EXPECT_EQ(got.stopped_by, plain.stopped_by);
  EXPECT_TRUE(same_bits(got.logprobs, plain.logprobs));
  ASSERT_EQ(got.top.size(), plain.top.size());
  for (size_t i = 0; i < got.top.size(); ++i) {
    ASSERT_EQ(got.top[i].size(), plain.top[i].size());
    for (size_t j = 0; j < got.top[i].size(); ++j) {
      EXPECT_EQ(got.top[i][j].id, plain.top[i][j].id);
      EXPECT_TRUE(same_bits({got.top[i][j].logprob}, {plain.top[i][j].logprob}));
    }
  }
}

inline Generation generate_same(Engine& engine, const Request& request, const Generation& plain, const std::string& what) {
  Generation run = generate(engine, request);
  expect_same_output(run, plain, what);
  return run;
}

// Requests that in a crowd are to say what plain decoding says of each alone.
class Together {
 public:
  explicit Together(Engine& alone) : alone_(alone) {}
  // Returns the one that the crowd gets: how it drafts is set there.
  Request& add(const Request& request) {
    plain_.push_back(generate_plain(alone_, request));
    return requests_.emplace_back(request);
  }
  std::vector<Generation> expect_plain_outputs(Engine& crowded, const std::string& where) const {
    auto runs = generate_together(crowded, requests_);
    for (size_t i = 0; i < runs.size(); ++i)
      expect_same_output(runs[i], plain_[i], fmt::format("{} request {} {}", where, i, requests_[i].speculation.proposer));
    return runs;
  }

 private:
  Engine& alone_;
  std::vector<Request> requests_;
  std::vector<Generation> plain_;
};

// After a crowd in too few pages.
inline void expect_full_stats(const EngineStats& stats, bool caching, const std::string& where) {
  SCOPED_TRACE(where);
  EXPECT_GT(stats.preemptions, 0);
  EXPECT_GT(stats.accepted, 0);
  EXPECT_EQ(stats.prefix_tokens_hit > 0, caching);
  EXPECT_EQ(stats.kv_pages_used, 0);
}

// Of six requests, with other steps and chunks in every turn.
inline EngineOptions crowd_of(EngineOptions options, bool caching, int turn) {
  options.max_num_seqs = 6, options.prefix_caching = caching;
  options.chunk_len = 40 + 9 * turn, options.max_num_batched_tokens = 90 + 10 * turn;
  return options;
}

// A pool of seven pages for six requests that want four each. Returns how many an id ended.
inline int expect_plain_outputs_in_a_crowd(const std::string& model, const char* device, const char* kv, bool caching, int turn,
    std::span<const Method> methods = kMethods) {
  const std::string where = fmt::format("{} {} {} cache {}", model, device, kv, caching);
  EngineOptions options{.model = tiny_path(model), .device = device, .threads = 1, .kv_dtype = kv, .context_len = 256};
  options.max_num_seqs = 1, options.prefix_caching = false;
  auto alone = load(options);
  options = crowd_of(options, caching, turn);
  options.kv_memory_bytes = bytes_of_pages(*alone, 7);
  auto crowded = load(options);

  Together together(*alone);
  for (int i = 0; i < 12; ++i) {
    Request& request = together.add(request_of_kind(*alone, i, phrases(100 + 13 * (i % 5), 70, i % 4), 60));
    set_method(request, methods[(i + 5 * turn) % methods.size()], 2 + (i + turn) % 6);
    request.priority = i % 3;
  }
  int ended_by_text = 0, ended_by_id = 0;
  for (const Generation& run : together.expect_plain_outputs(*crowded, where)) {
    ended_by_text += !run.stopped_by.empty();
    ended_by_id += run.finish == FinishReason::Stop && run.stopped_by.empty();
  }
  EXPECT_GE(ended_by_text, 1) << where;
  expect_full_stats(crowded->stats(), caching, where);
  return ended_by_id;
}

// How many guesses of a run stood beside chains, after a look at its counts by position.
inline int64_t guesses_beside(const Generation& run) {
  int64_t at_depths = 0, kept = 0;
  for (size_t i = 0; i < run.drafted_by_position.size(); ++i) {
    at_depths += run.drafted_by_position[i], kept += run.accepted_by_position[i];
    EXPECT_LE(run.accepted_by_position[i], run.drafted_by_position[i]);
  }
  EXPECT_EQ(kept, run.accepted);
  EXPECT_LE(at_depths, run.drafted);
  return run.drafted - at_depths;
}

// Runs over random trees of up to `most` nodes and of 30: tokens and entries are those of plain decoding.
struct TreeCounts {
  int64_t kept = 0, moved = 0;
  int largest = 0;
};
inline void expect_entries_of_a_chain(
    Engine& engine, Request request, int most, int64_t len, int turn, const std::string& where, TreeCounts& counts) {
  auto plain = make_step(engine, request);
  decode_to(*plain, len + 20);
  for (const int nodes : {most, most, 30}) {  // the first run knows nothing
    const int chain = 6 + turn % 7;
    guess(request, "random-trees", chain, nodes - chain);
    auto step = make_step(engine, request);
    step->hot_loop().after_commit = [&](Running& who) {
      counts.largest = std::max(counts.largest, who.tree().size);
      for (size_t i = 0; i < who.path_rows.size(); ++i) counts.moved += who.path_rows[i] != int32_t(i);
    };
    decode_to(*step, len);
    counts.kept += step->stats().accepted;
    const auto& tokens = step->sequence().tokens;
    SCOPED_TRACE(fmt::format("{} nodes {}", where, nodes));
    ASSERT_TRUE(std::equal(tokens.begin(), tokens.end(), plain->sequence().tokens.begin()));
    const int64_t entries = step->sequence().committed_len;
    ASSERT_TRUE(same_bits(kv_of(engine, *step, entries), kv_of(engine, *plain, entries)));
  }
}

}
