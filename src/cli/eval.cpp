// hunch eval: what a model and a setting are worth, not how fast they are. `perplexity` and `lookup` name KV type and policy, and
// say what is not lossless; `verify` is in eval_verify.h.
#include "api/answer_json.h"
#include "cli/bench_rows.h"
#include "cli/commands.h"
#include "cli/demo_book.h"
#include "cli/eval_verify.h"
#include "cli/generating.h"
#include "cli/interrupt.h"
#include "cli/report.h"
#include "cli/request_flags.h"
#include "engine/approximation.h"
#include "engine/token_run.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;

struct EvalFlags {
  ModelFlags model;
  SpeculationFlags speculation;
  std::optional<std::string> file;
  std::vector<int64_t> contexts;
  std::optional<int64_t> books, new_tokens, windows, seed, rows, scored;
  bool json = false;
};

// Fields that every row begins with.
ordered_json labels(Engine& engine) {
  return {{"engine", "hunch"}, {"build_commit", build_commit()}, {"model", engine.model_name()},
      {"type_k", dtype_info(engine.parts().geometry.dtype).name}};
}

// A KV cache of less than 16 bits a value is a lossy choice of the user, speculation or not.
bool kv_is_exact(Engine& engine) {
  const auto type = dtype_info(engine.parts().geometry.dtype);
  return type.block_bytes >= 2 * type.block;
}

Result<std::vector<int64_t>> contexts_of(const EvalFlags& flags, std::vector<int64_t> otherwise, int64_t most) {
  std::vector<int64_t> out;
  for (int64_t context : flags.contexts.empty() ? otherwise : flags.contexts) {
    if (context <= most) out.push_back(context);
    else note(fmt::format("a context of {} is beyond {}", context, std::max<int64_t>(0, most)));
  }
  if (out.empty())
    return usage_error(
        "no context fits into {} tokens; give a longer text or context, or --contexts", std::max<int64_t>(0, most));
  return out;
}

class Eval {
 public:
  Eval(Engine& engine, const EvalFlags& flags, const SpeculationOptions& speculation)
      : engine_(engine), flags_(flags), speculation_(speculation) {}

  // Of each window of `context` tokens the second half is scored, so that every scored token has at least half a context before
  // it (llama.cpp's convention).
  Status perplexity() {
    HUNCH_TRY(const auto ids, read_tokens(engine_, *flags_.file));
    const int64_t length = std::ssize(ids);
    const int64_t longest = std::min(length, engine_.context_len());
    HUNCH_TRY(const auto contexts, contexts_of(flags_, {512, 1024, 2048, 4096, 8192, 16384}, longest));
    for (const int64_t context : contexts) {
      HUNCH_TRY(const auto run, TokenRun::make(engine_.parts(), context, interrupts_.flag()));
      const int64_t most = flags_.windows.value_or(INT64_MAX);
      const int64_t windows = std::min(length / context, most);
      const int64_t first_scored = context / 2 + 1;
      double sum = 0, squares = 0;
      int64_t count = 0;
      int64_t w = 0;
      for (; w < windows && !interrupts_.stopped(); ++w) {
        const std::span<const int32_t> window(ids.data() + w * context, context);
        run->rewind(0);
        run->feed(window.first(first_scored - 1), chunk(), TokenRun::Logits::None);
        const auto scored = window.subspan(first_scored - 1);
        run->feed(scored, chunk(), TokenRun::Logits::All, [&](int64_t first, View<const float, 2> logits) {
          for (int64_t row = 0; row < logits.extent[0] && first + row + 1 < std::ssize(scored); ++row) {
            const double lp = log_probability(logits[row], scored[first + row + 1]);
            sum += lp, squares += lp * lp, ++count;
          }
        });
      }
      HUNCH_OK(run->status());
      if (count == 0) continue;
      const double mean = sum / count, variance = std::max(0.0, squares / count - mean * mean);
      const double perplexity = std::exp(-mean);
      ordered_json row = labels(engine_);
      row.update({{"eval", "perplexity"}, {"text", *flags_.file}, {"context", context}, {"windows", w}, {"tokens", count},
          {"perplexity", perplexity}, {"standard_error", perplexity * std::sqrt(variance / count)}, {"nats_per_token", -mean},
          {"lossless", kv_is_exact(engine_)}});
      emit(row,
          fmt::format("context {:>6}  perplexity {:9.4f} +- {:.4f}  ({} tokens in {} windows; kv {})", context, perplexity,
              row["standard_error"].get<double>(), count, w, row["type_k"].get<std::string>()));
    }
    return {};
  }

  Status verify() {
    HUNCH_TRY(const auto ids, read_tokens(engine_, *flags_.file));
    const int64_t most = std::min(std::ssize(ids), engine_.context_len());
    HUNCH_TRY(const auto contexts, contexts_of(flags_, {1024, 2048, 4096, 8192, 16384}, most));
    for (const int64_t context : contexts) {
      const VerifyEval how{
          .context = context,
          .scored = std::min(flags_.scored.value_or(128), context / 2),
          .rows = int(flags_.rows.value_or(8)),
          .windows = flags_.windows.value_or(4),
          .free_tokens = flags_.new_tokens.value_or(64),
      };
      HUNCH_TRY(const ordered_json found, eval_verify(engine_, ids, speculation_, how, interrupts_.flag()));
      if (found.is_null() || interrupts_.stopped()) return {};
      ordered_json row = labels(engine_);
      row.update({{"text", *flags_.file}});
      row.update(found);
      const auto number = [&](const char* key) { return row[key].get<double>(); };
      emit(row,
          fmt::format("context {:>6}  kl {:.5f} (exact KV {:.5f})  best token {:.2f} %  perplexity {:.4f} for {:.4f}  {:.0f} ms "
                      "for {:.0f}; {}",
              context, number("kl"), row["exact_kv"]["kl"].get<double>(), 100 * number("top1_agreement"), number("perplexity"),
              number("perplexity_exact"), number("ms"), number("ms_exact"), row["lossless"] ? "lossless here" : "LOSSY"));
    }
    return {};
  }

  // Facts from the beginning, the middle and the end of a book; greedy answers.
  Status lookup() {
    const int64_t new_tokens = flags_.new_tokens.value_or(48);
    const int64_t most = engine_.context_len() - new_tokens - 80;
    HUNCH_TRY(const auto contexts, contexts_of(flags_, {1024, 2048, 4096, 8192, 16384}, most));
    for (const int64_t context : contexts) {
      int asked = 0, found = 0;
      std::vector<int> found_at(3);
      bool lossless = true;
      Approximation approximation;
      std::string policy, proposer;
      int64_t prompt_tokens = 0;
      const int64_t books = flags_.books.value_or(4);
      for (int64_t b = 0; b < books; ++b) {
        HUNCH_TRY(const DemoBook book, fit_demo_book(engine_.tokenizer(), context, flags_.seed.value_or(7) + b));
        for (size_t q = 0; q < book.questions.size(); ++q) {
          Request request;
          HUNCH_TRY(request.prompt, engine_.tokenizer().encode(book.ask(book.questions[q].text)));
          request.max_tokens = new_tokens;
          request.cache_prompt = true;
          request.sampling.temperature = 0;
          request.speculation = speculation_;
          HUNCH_TRY(const Generation g, engine_.generate(request, {}, interrupts_.flag()));
          if (interrupts_.stopped()) return {};
          const bool right = book.questions[q].answered_by(g.text);
          ++asked, found += right, found_at[std::min<size_t>(q, 2)] += right;
          lossless = lossless && g.lossless;
          approximation.add(g.approximation);
          policy = g.policy, proposer = g.proposer, prompt_tokens = std::max(prompt_tokens, g.prompt_tokens);
        }
      }
      ordered_json row = labels(engine_);
      const double share = asked > 0 ? double(found) / asked : 0;
      row.update({{"eval", "lookup"}, {"context", context}, {"prompt_tokens", prompt_tokens}, {"books", books},
          {"questions", asked}, {"found", found}, {"accuracy", share},
          {"standard_error", asked > 0 ? std::sqrt(share * (1 - share) / asked) : 0}, {"found_early_middle_late", found_at},
          {"drafter", proposer}, {"policy", policy.empty() ? "none" : policy}, {"lossless", lossless && kv_is_exact(engine_)}});
      if (approximation.any()) row["approx"] = approximation_json(approximation);
      emit(row,
          fmt::format("context {:>6}  {:>3} of {} facts found (early, middle, late: {} {} {} of {}; kv {}, {}{})", context, found,
              asked, found_at[0], found_at[1], found_at[2], books, row["type_k"].get<std::string>(),
              policy.empty() ? "plain" : policy,
              lossless                  ? ""
                  : approximation.any() ? ", " + approximation_text(approximation)
                                        : ", LOSSY: guesses were not checked"));
    }
    return {};
  }

  int exit_code() const { return interrupts_.exit_code(); }

 private:
  int chunk() const { return engine_.parts().options.chunk_len; }

  void emit(const ordered_json& row, const std::string& text) { write_stdout(flags_.json ? json_line(row) + "\n" : text + "\n"); }

  Engine& engine_;
  const EvalFlags& flags_;
  const SpeculationOptions& speculation_;
  InterruptScope interrupts_;
};

void add_eval_flags(FlagSet& set, EvalFlags& flags, bool lookup, bool verify) {
  set.group("What to measure");
  if (!lookup) set.positional("FILE", true, "the text", flags.file);
  set.value({"--contexts", "--context"}, "LIST",
      lookup ? "tokens of book and question (default 1024,2048,4096,8192,16384)"
             : "tokens of a window (default 512 to 16384, as far as text and model reach)",
      set_ranges(flags.contexts, {16, 1 << 24}), 1);
  if (lookup) {
    set.whole({"--books"}, "books of each length, three questions each (default 4)", {1, 10000}, flags.books);
    set.whole({"-n", "--n-predict"}, "most tokens of an answer (default 48)", {1, 4096}, flags.new_tokens, 1);
    set.whole({"-s", "--seed"}, "seed of the first book (default 7)", {0, 0x1p53}, flags.seed);
  } else {
    if (verify) {
      set.whole({"--rows-per-check"}, "rows of a check (default 8)", {1, 64}, flags.rows);
      set.whole({"--scored"}, "tokens of a window, at its end, that are compared (default 128)", {2, 1 << 20}, flags.scored);
      set.whole({"-n", "--n-predict"}, "tokens of greedy streams that are compared; 0: none (default 64)", {0, 4096},
          flags.new_tokens, 1);
    }
    set.whole({"--windows", "--chunks"}, "most windows of each length (default: all)", {1, 1 << 24}, flags.windows, 1);
  }
  set.toggle({"--json"}, "print a JSON object a row (JSON lines, as hunch report reads them)", flags.json);
}

}

Result<int> eval_command(Arguments arguments) {
  const std::string what = arguments.empty() ? "--help" : arguments[0];
  const bool lookup = what == "lookup", verify = what == "verify";
  if (what == "--flag-names") return print_and_exit_code("--help\nlookup\nperplexity\nverify\n");
  if (what == "--help" || what == "-h")
    return print_and_exit_code(
        "usage: hunch eval perplexity FILE [flags]   perplexity of a text by length of context\n"
        "       hunch eval lookup [flags]            facts found in a record book, by its length\n"
        "       hunch eval verify FILE [flags]       what --verify sparse changes, against the exact check\n"
        "each has its own --help\n");
  if (!lookup && !verify && what != "perplexity")
    return usage_error("name what to measure: hunch eval perplexity FILE, hunch eval lookup, or hunch eval verify FILE");
  EvalFlags flags;
  FlagSet set(lookup ? "hunch eval lookup [flags]"
          : verify   ? "hunch eval verify FILE [flags]"
                     : "hunch eval perplexity FILE [flags]",
      verify       ? "What a sparse check (--verify sparse, LOSSY) changes by length of context: KL, the best token, perplexity, "
                     "greedy streams, time, against the exact check of the same model."
          : lookup ? "The share of facts that greedy answers find in a generated record book, by its length."
                   : "The perplexity of a text by length of context: the second half of each window is scored.");
  add_eval_flags(set, flags, lookup, verify);
  add_model_flags(set, flags.model);
  if (lookup || verify) add_speculation_flags(set, flags.speculation);
  if (const auto ended = parsed(set, arguments.subspan(1))) return *ended;
  HUNCH_TRY(auto speculation, resolve_speculation(flags.speculation));
  HUNCH_TRY(auto options, engine_options(flags.model, &flags.speculation));
  ProgressLine progress;
  HUNCH_TRY(auto engine, load_engine(options, progress));
  Eval eval(*engine, flags, speculation);
  HUNCH_OK(lookup ? eval.lookup() : verify ? eval.verify() : eval.perplexity());
  return eval.exit_code();
}

}
