// Bans, bias and penalties (backend/ops/logit_rules.h) on every backend, against a definition that knows a row's whole history:
// what plain decoding would have committed, drafted or not.

#include "backend/cpu/test_backends.h"
#include "backend/test_inputs.h"

namespace hunch {
namespace {

constexpr float kInf = INFINITY, kNan = NAN;
using Ids = Ints;

std::unique_ptr<LogitState> state_of(const LogitRules& rules, int64_t vocab, const Ids& prompt, const Ids& output) {
  auto state = std::make_unique<LogitState>(rules, vocab);
  state->reset(prompt.data(), std::ssize(prompt));
  for (const int32_t token : output) state->append(token);
  return state;
}

struct Sampled {
  Ids tokens;
  Floats probs;
  bool operator==(const Sampled& other) const { return tokens == other.tokens && same_bits(probs, other.probs); }
};

struct Round {
  const LogitState* state = nullptr;
  Ids drafts, parents;  // of rows; empty parents: a chain
  int first_row = 0;
  bool blind = false;
};

// Row r stands at position first_position + r: noise must be the same wherever a row is computed.
Sampled sample(Backend& backend, const Floats& logits, int64_t vocab, const SamplingParams& params, const Round& round,
    const Ids& positions) {
  const int64_t rows = std::ssize(logits) / vocab;
  Sampled out{Ids(size_t(rows), -2), Floats(logits.size(), -1.0f)};
  const Floats before = logits;
  SampleArgs args{.logits = view(logits, rows, vocab), .params = params, .key = {77, 1}, .positions = view(positions, rows)};
  args.tokens = view(out.tokens, rows), args.probs = view(out.probs, rows, vocab);
  args.state = round.state, args.first_row = round.first_row, args.blind = round.blind;
  args.drafts = view(round.drafts), args.parents = round.parents;
  backend.sample(args);
  EXPECT_TRUE(same_bits(before, logits)) << "logits were changed in place";
  return out;
}

class Rules : public testing::TestWithParam<std::string> {
 protected:
  // What is sampled for one row after prompt, output and drafts.
  Sampled row_after(const Floats& logits, const SamplingParams& params, const LogitRules& rules, const Ids& prompt,
      const Ids& output, const Ids& drafts) {
    const auto state = state_of(rules, std::ssize(logits), prompt, output);
    return sample(*backend_, logits, std::ssize(logits), params, {state.get(), drafts, {}, int(drafts.size())}, {9});
  }
  int32_t choose(const Floats& logits, const LogitRules& rules, const Ids& prompt, const Ids& output, const Ids& drafts = {}) {
    return row_after(logits, {0, 0, 1, 0}, rules, prompt, output, drafts).tokens[0];
  }
  // How far the processed logit of `a` stands above that of `b`.
  double log_odds(const Floats& logits, const LogitRules& rules, const Ids& prompt, const Ids& output, const Ids& drafts,
      int32_t a, int32_t b) {
    const Sampled sampled = row_after(logits, {1, 0, 1, 0}, rules, prompt, output, drafts);
    return std::log(double(sampled.probs[a])) - std::log(double(sampled.probs[b]));
  }

  std::unique_ptr<Backend> backend_ = make_backend(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Backend, Rules, testing::ValuesIn(all_backends()), backend_name);

TEST_P(Rules, FrequencyCountsOutputAndDraftsButNotThePrompt) {
  const Floats logits(4, 1.0f);
  const auto odds = [&](const Ids& drafts) { return log_odds(logits, {.frequency = 0.5f}, {1, 1, 1}, {1, 2}, drafts, 0, 1); };
  EXPECT_NEAR(odds({}), 0.5, 1e-6);
  EXPECT_NEAR(odds({1}), 1.0, 1e-6);
  EXPECT_NEAR(odds({1, 0, 1}), 1.5 - 0.5, 1e-6);
}

TEST_P(Rules, PresenceCountsOnceAndAlsoADraftThatIsNew) {
  const Floats logits(4, 1.0f);
  EXPECT_NEAR(log_odds(logits, {.presence = 0.75f}, {3}, {1, 1}, {}, 0, 1), 0.75, 1e-6);
  EXPECT_NEAR(log_odds(logits, {.presence = 0.75f}, {3}, {1, 1}, {}, 0, 3), 0, 1e-6);
  EXPECT_NEAR(log_odds(logits, {.presence = 0.75f}, {3}, {1, 1}, {3, 3}, 0, 3), 0.75, 1e-6);
  EXPECT_NEAR(log_odds(logits, {.presence = -0.75f}, {}, {1}, {}, 0, 1), -0.75, 1e-6);
}

TEST_P(Rules, RepetitionDividesPositiveAndMultipliesNegativeLogitsOfPromptOutputAndDrafts) {
  const Floats logits = {0, 2, 2, 2, -2};
  const LogitRules rules{.repetition = 4};
  EXPECT_NEAR(log_odds(logits, rules, {1}, {}, {}, 1, 0), 0.5, 1e-6);
  EXPECT_NEAR(log_odds(logits, rules, {1}, {1, 2, 2}, {}, 2, 0), 0.5, 1e-6);
  EXPECT_NEAR(log_odds(logits, rules, {1}, {2}, {3}, 3, 0), 0.5, 1e-6);
  EXPECT_NEAR(log_odds(logits, rules, {1}, {2}, {}, 3, 0), 2, 1e-6);
  EXPECT_NEAR(log_odds(logits, rules, {}, {4}, {}, 4, 0), -8, 1e-5);
}

TEST_P(Rules, BiasComesBeforePenalties) {
  // (1 + 3) / 2 = 2 and not 1 / 2 + 3.
  EXPECT_NEAR(log_odds({0, 1}, {.repetition = 2, .bias = {{1, 3.0f}}}, {1}, {}, {}, 1, 0), 2, 1e-6);
}

TEST_P(Rules, BiasOfMinusHundredBansWhateverTheLogit) {
  for (const float bias : {-100.0f, -1000.0f, -kInf}) {
    const Floats logits = {0, 300, kInf};
    EXPECT_EQ(choose(logits, {.bias = {{1, bias}, {2, bias}}}, {}, {}), 0);
    EXPECT_EQ(choose(logits, {.bias = {{1, bias}, {2, bias}}}, {}, {}, {1, 2}), 0);  // inside a run
  }
  EXPECT_EQ(choose({0, 300}, {.bias = {{1, -99.0f}}}, {}, {}), 1);
}

TEST_P(Rules, BadWordsAreMatchedAcrossPromptOutputAndDrafts) {
  const Floats logits = {0, 1, 2, 3, 9};
  const LogitRules rules{.bad_words = {{1, 2, 3, 4}}};
  EXPECT_EQ(choose(logits, rules, {1, 2, 3}, {}), 3);
  EXPECT_EQ(choose(logits, rules, {1}, {2, 3}), 3);
  EXPECT_EQ(choose(logits, rules, {0}, {1, 2, 3}), 3);
  EXPECT_EQ(choose(logits, rules, {1}, {2}, {3}), 3);
  EXPECT_EQ(choose(logits, rules, {0}, {0, 1}, {2, 3}), 3);
  EXPECT_EQ(choose(logits, rules, {}, {}, {0, 1, 2, 3}), 3);
  EXPECT_EQ(choose(logits, rules, {1}, {2}, {2, 3}), 4);
  EXPECT_EQ(choose(logits, rules, {}, {2, 3}), 4);  // shorter than the word
  EXPECT_EQ(choose(logits, rules, {1, 2, 3}, {3}), 4);
  EXPECT_EQ(choose(logits, {.bad_words = {{4}, {3}}}, {}, {}), 2);  // a word of one token is banned always
}

TEST_P(Rules, LeaveOutWhatReadsDraftsThatNobodyKnows) {
  struct NotTheLast final : TokenMask {
    Row after(std::span<const int32_t> path) override { return {.words = path.empty() ? &not_four : &none}; }
    void append(int32_t) override {}
    void reset() override {}
    const uint32_t not_four = ~16u, none = 0;
  };
  const auto state = state_of({.bad_words = {{3}, {1, 2}}}, 5, {}, {1});
  for (const bool masked : {false, true}) {
    if (masked) state->take_mask(std::make_unique<NotTheLast>());
    const auto tokens = [&](bool blind) {
      return sample(*backend_, {0, 1, 2, 3, 1, 0, 1, 2, 3, 1}, 5, {0, 0, 1, 0}, {state.get(), {1}, {}, 0, blind}, {3, 4}).tokens;
    };
    EXPECT_EQ(tokens(false), (Ids{1, masked ? -1 : 1}));
    EXPECT_EQ(tokens(true), (Ids{1, 2}));
  }
}

TEST_P(Rules, RememberEnoughForTheLongestBadWordHoweverLongTheOutput) {
  const Floats logits = {0, 1, 2, 9};
  Ids output;
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(
        choose(logits, {.bad_words = {{0, 1, 2, 0, 1, 3}, {1, 3}}}, {2}, output), !output.empty() && output.back() == 1 ? 2 : 3);
    EXPECT_EQ(choose(logits, {.bad_words = {{0, 1, 2, 0, 1, 3}}}, {2}, output), i >= 5 && i % 3 == 2 ? 2 : 3) << i;
    output.push_back(i % 3);
  }
}

TEST_P(Rules, MinTokensIsReachedInTheMiddleOfARun) {
  const Floats logits = {5, 4, 3};
  const LogitRules rules{.min_tokens = 3, .end_ids = {0, 1}};
  EXPECT_EQ(choose(logits, rules, {2, 2, 2, 2}, {}), 2);  // the prompt does not count
  EXPECT_EQ(choose(logits, rules, {}, {2, 2}), 2);
  EXPECT_EQ(choose(logits, rules, {}, {2, 2, 2}), 0);
  // Rows of one round with two committed: banned, allowed, allowed.
  const auto state = state_of(rules, 3, {2}, {2, 2});
  Floats three;
  for (int i = 0; i < 3; ++i) append(three, logits);
  EXPECT_EQ(sample(*backend_, three, 3, {0, 0, 1, 0}, {state.get(), {2, 2}}, {3, 4, 5}).tokens, (Ids{2, 0, 0}));
}

TEST_P(Rules, OnlyAllowedIdsAreChosenOnEveryRow) {
  const auto state = state_of({.allowed = {2, 1}}, 4, {3}, {3});
  EXPECT_EQ(sample(*backend_, {9, 1, 2, 8, 9, 2, 1, 8}, 4, {0, 0, 1, 0}, {state.get(), {2}}, {3, 4}).tokens, (Ids{2, 1}));
  EXPECT_EQ(choose({9, 1, 2}, {.allowed = {1, 2}, .bad_words = {{2}}}, {}, {}), 1);
}

TEST_P(Rules, RefuseRowsWhereAllIsBannedOrAnythingIsNan) {
  EXPECT_EQ(choose({1, 2}, {.bias = {{0, -kInf}, {1, -kInf}}}, {}, {}), -1);
  EXPECT_EQ(choose({1, 2}, {.allowed = {0}, .bad_words = {{1, 0}}}, {}, {1}), -1);
  EXPECT_EQ(choose({1, -kInf}, {.allowed = {1}}, {}, {}), -1);
  EXPECT_EQ(choose({1, kNan}, {.allowed = {0}}, {}, {}), -1);
  EXPECT_EQ(choose({1, kNan}, {.bias = {{1, -100.0f}}}, {}, {}), -1);
  EXPECT_EQ(choose({1, kNan}, {.bad_words = {{1}}}, {}, {}), -1);
  EXPECT_EQ(choose({1, kNan}, {.min_tokens = 1, .end_ids = {1}}, {}, {}), -1);
}

// The row by the rules' text, from the whole history.
Floats processed(const float* raw, int64_t vocab, const LogitRules& rules, const Ids& prompt, const Ids& output) {
  Floats x(raw, raw + vocab);
  Ids history = prompt;
  append(history, output);
  for (int32_t id = 0; id < vocab; ++id) {
    float& out = x[id];
    const auto among = [id](const Ids& ids) { return std::ranges::find(ids, id) != ids.end(); };
    bool ban = !rules.allowed.empty() && !among(rules.allowed);
    for (const Ids& word : rules.bad_words) {
      if (word.back() != id || history.size() + 1 < word.size()) continue;
      ban |= std::equal(word.begin(), word.end() - 1, history.end() - long(word.size() - 1));
    }
    ban |= std::ssize(output) < rules.min_tokens && among(rules.end_ids);
    for (const auto& [other, bias] : rules.bias)
      if (other == id) ban |= bias <= -100, out += bias;
    if (ban) {
      out = -kInf;
      continue;
    }
    if (among(history) && rules.repetition != 1) out = out > 0 ? out / rules.repetition : out * rules.repetition;
    const auto count = std::ranges::count(output, id);
    if (count > 0) out = out - rules.frequency * float(count) - rules.presence;
  }
  return x;
}

struct Case {
  LogitRules rules;
  int64_t vocab = 0;
  Ids prompt, output, drafts, parents;
  SamplingParams params;
};

// Small alphabets inside the vocabulary, so that repetitions and bad words do happen.
Case random_case(std::mt19937& random) {
  const auto below = [&](int64_t n) { return int32_t(random() % uint64_t(n)); };
  const auto fill = [&](int64_t n, int64_t alphabet) {
    Ids ids(n);
    for (int32_t& id : ids) id = below(alphabet);
    return ids;
  };
  Case c;
  const int64_t sizes[] = {3, 17, 64, 300, 1031};
  c.vocab = sizes[below(5)];
  const int64_t alphabet = std::min<int64_t>(c.vocab, 2 + below(6));
  c.prompt = fill(below(12), alphabet);
  c.output = fill(below(12), alphabet);
  c.drafts = fill(below(9), alphabet);
  if (below(2)) {  // a tree
    c.parents.push_back(-1);
    for (size_t row = 1; row <= c.drafts.size(); ++row) c.parents.push_back(below(int64_t(row)));
  }
  if (below(2)) c.rules.repetition = 0.5f + float(below(10)) / 5;
  if (below(2)) c.rules.presence = float(below(9) - 4) / 3;
  if (below(2)) c.rules.frequency = float(below(9) - 4) / 3;
  if (below(2))
    for (int i = below(6); i >= 0; --i) c.rules.bias.emplace_back(below(c.vocab), float(below(7) - 3));
  if (below(3) == 0) c.rules.bias.emplace_back(below(alphabet), below(2) ? -100.0f : -kInf);
  if (below(3) == 0) c.rules.allowed = fill(1 + below(20), c.vocab), c.rules.allowed.push_back(below(alphabet));
  if (below(2))
    for (int i = below(6); i >= 0; --i) c.rules.bad_words.push_back(fill(1 + below(4), alphabet));
  if (below(2)) c.rules.min_tokens = below(20), c.rules.end_ids = fill(1 + below(3), alphabet);
  constexpr SamplingParams kParams[] = {{0, 0, 1, 0}, {1, 0, 1, 0}, {0.8f, 40, 0.95f, 0.05f}, {1, 3, 1, 0}, {1.2f, 0, 0.7f, 0}};
  c.params = kParams[below(5)];
  return c;
}

Ids path_of(const Case& c, int row) {
  Ids path;
  for (; row > 0; row = c.parents.empty() ? row - 1 : c.parents[row]) path.insert(path.begin(), c.drafts[row - 1]);
  return path;
}

// Rows of one verify pass against rows one by one with the drafts committed, and against the definition without state: all must
// have the same bits, since the match rule compares them.
TEST_P(Rules, GiveARowOfATreeOrChainTheBitsOfPlainDecoding) {
  const auto backend = make_backend(GetParam(), 2);
  ReferenceBackend reference;
  std::mt19937 random(20);
  int refused = 0, bound = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const Case c = random_case(random);
    const int rows = 1 + int(c.drafts.size());
    const auto logits = gaussian(rows * c.vocab, random(), 2);
    Ids positions;
    for (int row = 0; row < rows; ++row) positions.push_back(100 + row);
    const auto state = state_of(c.rules, c.vocab, c.prompt, c.output);
    const Sampled all = sample(*backend, logits, c.vocab, c.params, {state.get(), c.drafts, c.parents}, positions);
    const Sampled want = sample(reference, logits, c.vocab, c.params, {state.get(), c.drafts, c.parents}, positions);
    ASSERT_EQ(all.tokens, want.tokens) << "trial " << trial;
    for (size_t i = 0; i < want.probs.size(); ++i) ASSERT_NEAR(all.probs[i], want.probs[i], 1e-6) << "trial " << trial;

    for (int row = 0; row < rows; ++row) {
      const float* raw = logits.data() + row * c.vocab;
      const Floats one_row(raw, raw + c.vocab);
      const Sampled of_all{{all.tokens[row]}, part_of(all.probs, row * c.vocab, c.vocab)};
      const Ids position = {positions[row]};
      // Alone, as the drafter asks for it.
      ASSERT_EQ(sample(*backend, one_row, c.vocab, c.params, {state.get(), c.drafts, c.parents, row}, position), of_all);
      // Committed.
      Ids output = c.output;
      append(output, path_of(c, row));
      const auto later = state_of(c.rules, c.vocab, c.prompt, output);
      ASSERT_EQ(sample(*backend, one_row, c.vocab, c.params, {later.get()}, position), of_all) << "trial " << trial;
      // By the text of the rules.
      const Floats patched = processed(raw, c.vocab, c.rules, c.prompt, output);
      ASSERT_EQ(sample(*backend, patched, c.vocab, c.params, {}, position), of_all) << "trial " << trial << ", row " << row;
      refused += of_all.tokens[0] < 0, bound += patched != one_row;
    }
  }
  EXPECT_GT(bound, 700);  // the rules did something, and hardly ever banned all
  EXPECT_LT(refused, 150);
}

TEST(LogitState, StartsAnewAtEveryReset) {
  ReferenceBackend reference;
  const LogitRules rules{
      .repetition = 1.5f, .presence = 1, .frequency = 1, .bad_words = {{1, 2}}, .min_tokens = 2, .end_ids = {0}};
  LogitState state(rules, 4);
  const Ids first = {1, 2, 3, 3}, second = {2};
  state.reset(first.data(), 4);
  for (const int32_t token : {3, 3, 1}) state.append(token);
  state.reset(second.data(), 1);
  state.append(3);
  const auto fresh = state_of(rules, 4, second, {3});
  const Floats logits = {4, 1, 2, 3};
  EXPECT_EQ(
      sample(reference, logits, 4, {1, 0, 1, 0}, {&state}, {3}), sample(reference, logits, 4, {1, 0, 1, 0}, {fresh.get()}, {3}));
  EXPECT_EQ(state.output_len(), 1);
}

}
}
