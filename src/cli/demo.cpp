// hunch demo: a long record book with facts hidden in it. The same request runs three ways: plainly, with self-speculation
// (equal, and faster), and with sparse attention alone, unchecked (fast, and forgetful).
#include <fmt/format.h>

#include <algorithm>

#include "cli/commands.h"
#include "cli/demo_book.h"
#include "cli/generating.h"
#include "cli/interrupt.h"
#include "cli/report.h"
#include "cli/request_flags.h"
#include "text/detokenizer.h"

namespace hunch {
namespace {

constexpr int64_t kBookTokens = 15900, kAnswerTokens = 120, kContinuationTokens = 96;
constexpr uint64_t kBookSeed = 2026;

struct DemoFlags {
  ModelFlags model;
  std::optional<int64_t> tokens;
  std::optional<uint64_t> seed;
  ColorWish color = ColorWish::Auto;
};

enum class Way { Plain, Guessed, Unchecked };

struct Outcome {
  Generation generation;
  std::string text;
};

class Demo {
 public:
  Demo(Engine& engine, ProgressLine& progress, Paint paint, uint64_t seed)
      : engine_(engine), progress_(progress), paint_(paint), seed_(seed) {}

  // Exit code 0, 1 where something promised did not hold, or the interrupt's.
  int show(const DemoBook& book, const std::string& title) {
    say("{}\n{}\n\n", paint_.bold("hunch demo"), wrapped(engine_.description(), 80, 0));
    say("{}\n", wrapped(fmt::format("The book: {} records, the last ones being", book.records.size()), 80, 0));
    for (size_t i = book.records.size() - 2; i < book.records.size(); ++i) say("  {}\n", wrapped(book.records[i].text(), 78, 2));
    say("{}\n\n", title);
    const bool ok = question(book) && !stopped() && continuation(book);
    if (stopped()) {
      complain("interrupted");
      return interrupts_.exit_code();
    }
    return ok && written_ ? 0 : 1;
  }

 private:
  template <class... A>
  void say(fmt::format_string<A...> format, A&&... values) {
    progress_.clear();
    written_ = written_ && write_stdout(fmt::format(format, std::forward<A>(values)...));
  }
  bool stopped() const { return interrupts_.stopped(); }

  std::optional<Outcome> run(const std::vector<int32_t>& prompt, int64_t max_tokens, double temperature, Way way) {
    Request request;
    request.prompt = prompt;
    request.max_tokens = max_tokens;
    request.sampling.temperature = temperature;
    request.sampling.top_p = 1, request.sampling.top_k = 0, request.sampling.min_p = 0;
    request.sampling.seed = seed_;
    request.speculation.rule = "match";
    if (way != Way::Plain) request.speculation.proposer = "self";
    if (way == Way::Unchecked) request.speculation.policy = "streamingllm", request.speculation.verify = false;
    auto generation = engine_.generate(
        request, [this](const TokenEvent&) { return progress_.clear(), true; }, interrupts_.flag());
    progress_.clear();
    if (!generation.ok()) {
      fail(generation.error());
      return std::nullopt;
    }
    std::string text = detokenize(engine_.tokenizer(), generation->tokens);
    return Outcome{std::move(*generation), std::move(text)};
  }

  void figures(std::string_view name, const Outcome& outcome) {
    const Generation& g = outcome.generation;
    say("  {:<22}{:>7.1f} tokens/s, {:>7} of KV read per token\n", name, g.tokens_per_second(),
        bytes_text(g.kv_bytes_per_token()));
  }

  // Two runs that must be equal: says so, with both speeds and the picture.
  bool compare(const Outcome& plain, const Outcome& guessed) {
    const bool equal = plain.generation.tokens == guessed.generation.tokens;
    const double a = plain.generation.tokens_per_second(), b = guessed.generation.tokens_per_second();
    figures("plain decoding", plain);
    figures("guessed and checked", guessed);
    say("  texts equal: {}   {:.2f} times the speed   {:.2f} tokens a round\n", equal ? paint_.green("yes") : paint_.red("NO"),
        a > 0 ? b / a : 0, guessed.generation.mean_acceptance_length());
    say("  guesses accepted, by their position in the round\n{}",
        acceptance_picture(guessed.generation.acceptance_by_position(), paint_));
    return equal;
  }

  bool question(const DemoBook& book) {
    say("{}\n  {}\n", paint_.bold("1. A question with answers all over the book (greedy)"), paint_.bold("> " + book.question()));
    auto ids = engine_.tokenizer().encode(book.question_prompt());
    if (!ids.ok()) return fail(ids.error()), false;
    const auto plain = run(*ids, kAnswerTokens, 0, Way::Plain);
    if (!plain || stopped()) return false;
    answer(book, plain->text);
    const auto guessed = run(*ids, kAnswerTokens, 0, Way::Guessed);
    if (!guessed || stopped()) return false;
    const bool equal = compare(*plain, *guessed);
    const auto unchecked = run(*ids, kAnswerTokens, 0, Way::Unchecked);
    if (!unchecked || stopped()) return false;
    say("\n  {} sparse attention alone (streamingllm, nothing checked) answers\n", paint_.red("LOSSY:"));
    answer(book, unchecked->text);
    figures("LOSSY, not checked", *unchecked);
    return equal;
  }

  // The answer line by line against the book.
  void answer(const DemoBook& book, const std::string& text) {
    const DemoBook::Check check = book.check(text);
    const auto mark = [&](const std::vector<std::string>& lines, const std::string& word) {
      for (const std::string& l : lines) say("    {:<44} {}\n", l.substr(0, 44), word);
    };
    mark(check.right, paint_.green("right"));
    mark(check.wrong, paint_.red("WRONG: not in the book"));
    mark(check.missing, paint_.red("MISSING"));
  }

  bool continuation(const DemoBook& book) {
    say("\n{}\n", paint_.bold("2. The book goes on (temperature 0.8, the same seed)"));
    auto ids = engine_.tokenizer().encode(book.continuation_prompt());
    if (!ids.ok()) return fail(ids.error()), false;
    const auto plain = run(*ids, kContinuationTokens, 0.8, Way::Plain);
    if (!plain || stopped()) return false;
    lines(plain->text);
    const auto guessed = run(*ids, kContinuationTokens, 0.8, Way::Guessed);
    if (!guessed || stopped()) return false;
    const bool equal = compare(*plain, *guessed);
    const auto unchecked = run(*ids, kContinuationTokens, 0.8, Way::Unchecked);
    if (!unchecked || stopped()) return false;
    const auto &a = plain->generation.tokens, &b = unchecked->generation.tokens;
    const size_t same = size_t(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
    say("\n  {} the same, not checked; it leaves plain decoding's text after {} tokens\n", paint_.red("LOSSY:"), same);
    lines(unchecked->text);
    figures("LOSSY, not checked", *unchecked);
    return equal;
  }

  void lines(const std::string& text) {
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      if (end > at) say("    {}\n", wrapped(text.substr(at, end - at), 76, 4));
      at = end + 1;
    }
  }

  Engine& engine_;
  ProgressLine& progress_;
  Paint paint_;
  uint64_t seed_;
  InterruptScope interrupts_;
  bool written_ = true;
};

int demo(const DemoFlags& flags) {
  auto options = engine_options(flags.model);
  if (!options.ok()) return fail(options.error());
  ProgressLine progress;
  auto engine = load_engine(*options, progress);
  if (!engine.ok()) return fail(engine.error());
  const int64_t room = (*engine)->context_len() - kAnswerTokens - 64;
  const auto book = fit_demo_book((*engine)->tokenizer(), std::min(room, flags.tokens.value_or(kBookTokens)), kBookSeed);
  if (!book.ok()) return fail(book.error());
  const auto ids = (*engine)->tokenizer().encode(book.value().text());
  if (!ids.ok()) return fail(ids.error());
  const std::string title = fmt::format("{} tokens in all.", ids.value().size());
  const Paint paint{color_wanted(flags.color, stdout_is_terminal())};
  return Demo(**engine, progress, paint, flags.seed.value_or(7)).show(book.value(), title);
}

}  // namespace

int demo_command(Arguments arguments) {
  DemoFlags flags;
  FlagSet set(
      "hunch demo [flags]",
      "Asks for facts hidden in a long record book and continues the book: plainly, then with guesses that are checked (the same "
      "text, faster), then unchecked (what sparse attention alone forgets). Takes about a minute on two cores.");
  add_model_flags(set, flags.model);
  set.group("Demo");
  set.whole({"--tokens"}, "length of the book in tokens (default 15900, at least 800)", {800, 1 << 24}, flags.tokens);
  set.value({"-s", "--seed"}, "N", "seed of the continuation (default 7)",
            [&flags](std::string_view flag, std::string_view v) -> Status {
              HUNCH_TRY(flags.seed, parse_whole(flag, v, {0, 0x1p62}));
              return {};
            });
  set.value({"--color"}, "WHEN", "auto (default), always or never",
            [&flags](std::string_view flag, std::string_view v) -> Status {
              HUNCH_TRY(flags.color, parse_color(flag, v));
              return {};
            });
  add_foreign_flags(set);
  if (const Status status = set.parse(arguments); !status.ok()) return fail(status.error());
  if (set.help_wanted()) return write_stdout(set.help()) ? 0 : 1;
  note_ignored(set);
  return demo(flags);
}

}  // namespace hunch
