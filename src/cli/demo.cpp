// hunch demo: the same request runs plainly, with self-speculation, and with sparse attention alone.

#include "cli/bench.h"
#include "cli/demo_book.h"
#include "cli/generating.h"
#include "cli/report.h"

namespace hunch {
namespace {

constexpr int64_t kBookTokens = 15900, kAnswerTokens = 64, kContinuationTokens = 96;
constexpr uint64_t kBookSeed = 2026;

struct DemoFlags {
  ModelFlags model;
  std::optional<int64_t> tokens;
  std::optional<uint64_t> seed;
  ColorWish color = ColorWish::Auto;
};

enum class Way { Plain, Guessed, Unchecked };

// Figures of several runs of one way, added up.
struct Tally {
  Generation sums;
  int64_t steps = 0;
  double kv_bytes = 0;

  void add(const Generation& g) {
    steps += std::max<int64_t>(0, std::ssize(g.tokens) - 1), kv_bytes += g.kv_bytes_read;
    add_counts(g, sums);
  }
  double speed() const {
    const double ms = sums.milliseconds.first_to_last_token;
    return ms > 0 ? steps * 1e3 / ms : 0;
  }
  double kv_per_token() const { return steps > 0 ? kv_bytes / steps : 0; }
};

class Demo {
 public:
  Demo(Engine& engine, ProgressLine& progress, Paint paint, uint64_t seed)
      : engine_(engine), progress_(progress), paint_(paint), seed_(seed) {}

  // Exit code 0, 1 where something promised did not hold, or the interrupt's.
  int show(const DemoBook& book, int64_t book_tokens) {
    say("{}\n{}\n\n", paint_.bold("hunch demo"), wrapped(engine_.description(), 80, 0));
    say("A book of {} records, {} tokens. Its last ones:\n", book.records.size(), book_tokens);
    for (size_t i = book.records.size() - 2; i < book.records.size(); ++i) say("  {}\n", wrapped(book.records[i].text(), 78, 2));
    const bool ok = questions(book) && continuation(book);
    if (interrupts_.stopped()) {
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

  std::optional<Generation> run(const std::string& prompt, int64_t max_tokens, double temperature, Way way) {
    auto ids = engine_.tokenizer().encode(prompt);
    if (!ids.ok()) return fail(ids.error()), std::nullopt;
    Request request;
    request.prompt = std::move(*ids);
    request.max_tokens = max_tokens;
    // No filters: what is compared is the model, not what truncation leaves of it.
    request.sampling = {.temperature = temperature, .top_p = 1, .min_p = 0, .top_k = 0, .seed = seed_};
    request.speculation.rule = "match";
    request.speculation.proposer = way == Way::Plain ? "none" : "self";
    if (way == Way::Unchecked) request.speculation.policy = "streamingllm", request.speculation.verify = false;
    auto generation = engine_.generate(
        request, [this](const TokenEvent&) { return progress_.clear(), true; }, interrupts_.flag());
    progress_.clear();
    if (!generation.ok()) return fail(generation.error()), std::nullopt;
    if (interrupts_.stopped()) return {};
    return std::move(*generation);
  }

  void figures(const std::string& name, const Tally& tally) {
    say("  {:<20}{:>8.1f} tokens/s {:>10} of KV cache read per token\n", name, tally.speed(), bytes_text(tally.kv_per_token()));
  }

  // Two ways that must have said the same.
  void compare(bool equal, const Tally& plain, const Tally& guessed) {
    figures("plain decoding", plain);
    figures("guessed and checked", guessed);
    say("  texts equal: {}   {:.2f} times the speed   {:.2f} tokens a round\n", equal ? paint_.green("yes") : paint_.red("NO"),
        plain.speed() > 0 ? guessed.speed() / plain.speed() : 0, guessed.sums.mean_acceptance_length());
    say("  guesses accepted, by their position in the round\n{}",
        acceptance_picture(guessed.sums.acceptance_by_position(), paint_));
  }

  bool questions(const DemoBook& book) {
    say("\n{}\n", paint_.bold("1. Facts from all over the book, asked in chat form (greedy)"));
    Tally plain, guessed, unchecked;
    std::vector<Tokens> streams;  // of plain decoding, by question
    const auto ask_all = [&](Way way, Tally& tally, const auto& take) {
      for (const BookQuestion& question : book.questions) {
        const auto outcome = run(book.ask(question.text), kAnswerTokens, 0, way);
        if (!outcome) return false;
        tally.add(*outcome);
        take(question, *outcome);
      }
      return true;
    };
    if (!ask_all(Way::Plain, plain, [&](const BookQuestion& question, const Generation& outcome) {
          streams.push_back(outcome.tokens);
          say("  > {}\n", question.text);
          answer(question, outcome.text);
        }))
      return false;
    bool equal = true;
    size_t nth = 0;
    if (!ask_all(Way::Guessed, guessed, [&](auto&, auto& outcome) { equal &= outcome.tokens == streams[nth++]; })) return false;
    compare(equal, plain, guessed);
    say("\n  {} the same questions to sparse attention alone (streamingllm, unchecked)\n", paint_.red("LOSSY:"));
    int wrong = 0;
    if (!ask_all(Way::Unchecked, unchecked, [&](auto& question, auto& outcome) { wrong += !answer(question, outcome.text); }))
      return false;
    figures("LOSSY, unchecked", unchecked);
    say("  {} of {} answers became wrong\n", wrong, book.questions.size());
    return equal;
  }

  // Prints an answer with its verdict; whether it is right.
  bool answer(const BookQuestion& question, std::string text) {
    std::ranges::replace(text, '\n', ' ');
    const bool right = question.answered_by(text);
    say("    {}  {}\n", wrapped(text, 66, 4), right ? paint_.green("right") : paint_.red("WRONG"));
    return right;
  }

  bool continuation(const DemoBook& book) {
    say("\n{}\n", paint_.bold("2. The book goes on (temperature 0.8, the same seed)"));
    const auto plain = run(book.text(), kContinuationTokens, 0.8, Way::Plain);
    if (!plain) return false;
    lines(plain->text);
    const auto guessed = run(book.text(), kContinuationTokens, 0.8, Way::Guessed);
    if (!guessed) return false;
    const bool equal = plain->tokens == guessed->tokens;
    Tally plain_tally, guessed_tally, unchecked_tally;
    plain_tally.add(*plain), guessed_tally.add(*guessed);
    compare(equal, plain_tally, guessed_tally);

    const auto unchecked = run(book.text(), kContinuationTokens, 0.8, Way::Unchecked);
    if (!unchecked) return false;
    unchecked_tally.add(*unchecked);
    const auto &a = plain->tokens, &b = unchecked->tokens;
    const size_t same = std::ranges::mismatch(a, b).in1 - a.begin();
    if (same == a.size() && same == b.size()) {
      say("\n  {} unchecked, and for once the same text: this task needs little memory\n", paint_.red("LOSSY:"));
    } else {
      say("\n  {} unchecked, the text is another one after {} tokens\n", paint_.red("LOSSY:"), same);
      lines(unchecked->text);
    }
    figures("LOSSY, unchecked", unchecked_tally);
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

Result<int> demo(const DemoFlags& flags) {
  HUNCH_TRY(auto options, engine_options(flags.model));
  options.max_num_seqs = 1;
  ProgressLine progress;
  HUNCH_TRY(auto engine, load_engine(options, progress));
  const int64_t room = engine->context_len() - kAnswerTokens - 64;
  HUNCH_TRY(const auto book, fit_demo_book(engine->tokenizer(), std::min(room, flags.tokens.value_or(kBookTokens)), kBookSeed));
  HUNCH_TRY(const auto ids, engine->tokenizer().encode(book.text()));
  const Paint paint{color_wanted(flags.color, stdout_is_terminal())};
  return Demo(*engine, progress, paint, flags.seed.value_or(7)).show(book, std::ssize(ids));
}

}

Result<int> demo_command(Arguments arguments) {
  DemoFlags flags;
  FlagSet set("hunch demo [flags]",
      "Asks for facts hidden in a long record book and continues the book: plainly, then with guesses that are checked (the same "
      "text, faster), then unchecked (what sparse attention alone forgets). Takes about a minute on two cores.");
  add_model_flags(set, flags.model);
  set.group("Demo");
  set.whole({"--tokens"}, "length of the book in tokens (default 15900, at least 900)", {900, 1 << 24}, flags.tokens);
  set.whole({"-s", "--seed"}, "seed of the continuation (default 7)", {0, 0x1p62}, flags.seed);
  add_color_flag(set, flags.color);
  add_foreign_flags(set);
  if (const auto ended = parsed(set, arguments)) return *ended;
  note_ignored(set);
  return demo(flags);
}

}
