// hunch bench ssv (docs/nsa.md). Facts asked of record books, greedily: by class, by rows that share a choice and by traversal;
// and the share of attention's time that choosing blocks takes.
#include "cli/bench.h"
#include "cli/demo_book.h"
#include "cli/generating.h"
#include "cli/report.h"
#include "engine/approximation.h"
#include "engine/token_run.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;

struct SsvFlags {
  ModelFlags model;
  SpeculationFlags speculation;
  std::vector<int64_t> contexts{1024, 4096, 8192}, groups{1, 2, 4, 8, 16}, rows{1, 4, 16};
  int64_t books = 2, new_tokens = 64, repeats = 9;
  bool json = false;
};

// Speculation's answers to the questions of some books, beside those of plain exact decoding.
struct Answers {
  Generation sums;
  int64_t asked = 0, right = 0, streams = 0, identical = 0, tokens = 0;
  double agreed = 0;  // shares of streams in front of the first difference
  double speed() const {
    const double ms = sums.milliseconds.first_to_last_token;
    return ms > 0 ? double(tokens) / ms * 1e3 : 0;
  }
};

class SsvBench : Measurement<SsvFlags> {
 public:
  using Measurement::Measurement;

  Result<int> run() {
    const Status status = measure();
    progress_.clear();
    if (!status.ok()) return status.error();
    if (flags_.json) return print_json_and_exit_code(out_);
    std::string text = engine_.description() + "\n";
    for (const auto& [name, title] : {std::pair("classes", "Precision classes"), {"sweep", "Rows that share a choice"},
             {"choosing", "Verify passes, ms; the share that choosing takes"}}) {
      BenchTable table{name, title, {}, ""};
      for (ordered_json row : out_[name]) {
        row.erase("approx");
        table.rows.push_back(std::move(row));
      }
      text += "\n" + table_text(table);
    }
    return print_and_exit_code(text);
  }

 private:
  Status measure() {
    out_["engine"] = engine_.description();
    out_["drafter"] = speculation_.proposer;
    for (const char* name : {"classes", "sweep", "choosing"}) out_[name] = ordered_json::array();
    for (const int64_t context : flags_.contexts) {
      if (context + flags_.new_tokens + 80 > engine_.context_len()) {
        note(fmt::format("a context of {} is beyond {}", context, engine_.context_len()));
        continue;
      }
      HUNCH_OK(ask_for(context));
      HUNCH_TRY(const Answers plain, answers(plain_decoding()));
      row("classes", context, "plain", speculation_, plain, plain);
      Answers strict;
      for (const std::string_view name : precision_classes()) {
        SpeculationOptions o = speculation_;
        o.precision_class = name;
        if (name.ends_with("reuse") && o.reuse_layers.empty() && !engine_.parts().reuse_layers) continue;
        HUNCH_TRY(const Answers got, answers(o));
        if (name == "strict") strict = got;
        row("classes", context, name, o, got, strict);
      }
      for (const char* order : {"bfs", "dfs"})
        for (const int64_t group : flags_.groups) {
          SpeculationOptions o = speculation_;
          o.precision_class = "approx", o.group_rows = int(group), o.traversal = order;
          HUNCH_TRY(const Answers got, answers(o));
          row("sweep", context, "approx", o, got, strict);
        }
      if (interrupts_.stopped()) return Error{"interrupted"};
      for (const int64_t rows : flags_.rows) HUNCH_OK(time_choosing(context, rows));
    }
    return {};
  }

  struct Question {
    Tokens ids, exact;
    const BookQuestion* asks = nullptr;  // null: a copy of some records
  };

  Status ask_for(int64_t context) {
    questions_.clear(), books_.clear();
    books_.reserve(flags_.books);
    for (int64_t b = 0; b < flags_.books; ++b) {
      HUNCH_TRY(books_.emplace_back(), fit_demo_book(engine_.tokenizer(), context, 7 + b));
      const DemoBook& book = books_.back();
      for (const BookQuestion& question : book.questions) {
        HUNCH_TRY(auto ids, engine_.tokenizer().encode(book.ask(question.text)));
        questions_.push_back({std::move(ids), {}, &question});
      }
      HUNCH_TRY(auto ids, engine_.tokenizer().encode(book.ask(book.copy_question)));
      questions_.push_back({std::move(ids), {}, nullptr});
    }
    return {};
  }

  Result<Answers> answers(const SpeculationOptions& o) {
    Answers out;
    for (Question& question : questions_) {
      Request request;
      request.prompt = question.ids;
      request.max_tokens = flags_.new_tokens;
      request.sampling.temperature = 0;
      request.speculation = o;
      progress_.show(o.precision_class, ++done_, 0);
      HUNCH_TRY(const Generation g, engine_.generate(request, {}, interrupts_.flag()));
      if (o.proposer == "none") question.exact = g.tokens;
      const auto& exact = question.exact;
      const size_t length = std::max<size_t>(1, std::max(exact.size(), g.tokens.size()));
      const auto differs = std::ranges::mismatch(g.tokens, exact).in1;
      out.agreed += g.tokens == exact ? 1 : double(differs - g.tokens.begin()) / length;
      ++out.streams, out.identical += g.tokens == exact, out.tokens += std::max<int64_t>(0, std::ssize(g.tokens) - 1);
      if (question.asks) ++out.asked, out.right += question.asks->answered_by(g.text);
      add_counts(g, out.sums);
    }
    return out;
  }

  void row(const char* section, int64_t context, std::string_view name, const SpeculationOptions& o, const Answers& got,
      const Answers& strict) {
    ordered_json row{{"context", context}, {"class", name}};
    if (std::string_view(section) == "sweep") row["group_rows"] = o.group_rows, row["traversal"] = o.traversal;
    row.update({{"tokens_per_second", got.speed()}, {"over_strict", strict.speed() > 0 ? got.speed() / strict.speed() : 1},
        {"mean_acceptance_length", got.sums.mean_acceptance_length()}, {"agreement", got.agreed / got.streams},
        {"identical", double(got.identical) / got.streams}, {"accuracy", got.asked > 0 ? double(got.right) / got.asked : 0},
        {"questions", got.asked}, {"lossless", got.sums.lossless}});
    if (got.sums.approximation.any()) row["approx"] = approximation_json(got.sums.approximation);
    out_[section].push_back(std::move(row));
  }

  // Verify passes of a chain over noise, each layer choosing, and all but the first reusing that choice: what choosing takes.
  Status time_choosing(int64_t depth, int64_t rows) {
    const int layers = engine_.parts().model->shape().layers;
    IndexSharing reuse{.reused = std::vector<uint8_t>(layers, 1)};
    reuse.reused[0] = 0;
    HUNCH_TRY(const auto run, TokenRun::make(engine_.parts(), depth + rows));
    run->fill(depth);
    const Tokens tokens(rows, 1);
    std::vector<double> ms[2];
    for (int64_t i = -2; i < 2 * flags_.repeats; ++i) {  // in turn, so that both meet the same neighbours
      run->share(i % 2 ? &reuse : nullptr);
      const auto start = Clock::now();
      run->feed(tokens, int(rows), TokenRun::Logits::None);
      if (i >= 0) ms[i % 2].push_back(ms_since(start));
      run->rewind(depth);
    }
    const double own = median(ms[0]), reused = median(ms[1]);
    out_["choosing"].push_back({
        {"context", depth},
        {"rows", rows},
        {"pass_ms", own},
        {"reusing_pass_ms", reused},
        {"choosing_share", std::max(0.0, (own - reused) / own * layers / std::max(1, layers - 1))},
    });
    return run->status();
  }

  std::vector<DemoBook> books_;
  std::vector<Question> questions_;
  ordered_json out_;
  int64_t done_ = 0;
};

}

Result<int> bench_ssv_command(Arguments arguments) {
  SsvFlags flags;
  FlagSet set("hunch bench ssv [flags]",
      "What the precision classes of a model with natively trained sparse attention cost and save: speed, agreement with "
      "exact decoding and right answers, by class and by rows that share a choice, and how long choosing takes.");
  set.group("What to measure");
  add_list(set, {"--contexts"}, "tokens of book and question (default 1024,4096,8192)", {256, 1 << 24}, flags.contexts);
  set.whole({"--books"}, "books of each length, four questions each (default 2)", {1, 1000}, flags.books);
  set.whole({"-n", "--n-predict"}, "most tokens of an answer (default 64)", {2, 4096}, flags.new_tokens, 1);
  add_list(set, {"--groups"}, "rows that share a choice, of the sweep (default 1,2,4,8,16)", {1, 64}, flags.groups);
  add_list(set, {"--verify-rows"}, "rows whose attention is timed (default 1,4,16)", {1, 64}, flags.rows);
  set.whole({"-r", "--repetitions"}, "repetitions of those (default 9)", {1, 1000}, flags.repeats);
  set.toggle({"--json"}, "print one JSON object and nothing else on stdout", flags.json);
  add_model_flags(set, flags.model);
  add_speculation_flags(set, flags.speculation);
  if (const auto ended = parsed(set, arguments)) return *ended;
  HUNCH_TRY(auto speculation, resolve_speculation(flags.speculation));
  HUNCH_TRY(auto options, engine_options(flags.model, &flags.speculation));
  ProgressLine progress;
  HUNCH_TRY(auto engine, load_engine(options, progress));
  const ModelShape& shape = engine->parts().model->shape();
  if (!shape.nsa.used())
    return usage_error(
        "bench ssv is for models with natively trained sparse attention, and this one ({}) has none", shape.family);
  return SsvBench(*engine, flags, speculation, progress).run();
}

}
