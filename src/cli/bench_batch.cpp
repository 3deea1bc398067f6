// hunch bench batch: llama-batched-bench's question, put to the scheduler that serves. Requests of a level are handed in
// together, each with a text of its own unless --shared-prompt.
#include "api/answer_json.h"
#include "cli/bench.h"
#include "cli/bench_prompts.h"
#include "cli/generating.h"
#include "cli/report.h"
#include "engine/approximation.h"
#include "engine/parts.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;

struct BatchFlags {
  ModelFlags model;
  SpeculationFlags speculation;
  std::vector<int64_t> parallel, prompts, gens;
  std::optional<std::string> text_file, prompt_file;
  std::vector<int64_t> contexts;
  std::optional<double> temperature;
  std::optional<int64_t> seed;
  int64_t repetitions = 1;
  bool shared = false;
  RowFormat format = RowFormat::Markdown;
};

// What one level did.
struct Level {
  double prompt_ms = 0;  // until every request had its first token
  double total_ms = 0;
  std::vector<double> first_ms, per_request_ts;
  double decode_ms = 0;  // the longest time from a request's first token to its last
  int64_t tokens = 0;
  // Of decoding: first tokens come with the prompts. What one request waits for another's prompt counts, too.
  double decode_ts() const { return (tokens - std::ssize(first_ms)) * 1e3 / std::max(1e-6, decode_ms); }
  Generation sums;
};

// Of every repetition; `first` and `each` of every request.
struct Samples {
  std::vector<int64_t> ns;
  std::vector<double> speeds, gains, first, each, decodes, decode_gains;
  Generation sums;
};

class BatchBench {
 public:
  BatchBench(Engine& engine, const BatchFlags& flags, const SpeculationOptions& speculation, ordered_json fields)
      : engine_(engine),
        flags_(flags),
        speculation_(speculation),
        fields_(std::move(fields)),
        printer_(flags.format, columns()) {}

  Status run() {
    if (flags_.text_file) { HUNCH_TRY(text_, read_tokens(engine_, *flags_.text_file)); }
    if (flags_.prompt_file) HUNCH_OK(read_file_of_prompts());
    // A small level first: pages are touched, and draft weights made, outside of the timing.
    for (const bool speculate : {false, true}) {
      if (speculate && speculation_.proposer == "none") break;
      HUNCH_OK(level(std::min<int64_t>(flags_.prompts[0], 64), 8, 1, speculate ? speculation_ : plain_decoding(), 1, 0));
    }
    for (int64_t prompt : dealt_.empty() ? flags_.prompts : std::vector<int64_t>{length_})
      for (int64_t gen : flags_.gens)
        for (int64_t parallel : flags_.parallel) HUNCH_OK(measure(prompt, gen, parallel));
    write_stdout(printer_.end());
    return {};
  }
  int exit_code() const { return interrupts_.exit_code(); }

 private:
  std::vector<std::string> columns() const {
    std::vector<std::string> out{"n_parallel", "drafter"};
    if (speculation_.proposer != "none") out.insert(out.end(), {"mean_acceptance_length", "speedup"});
    return out;
  }

  // All of one length, which takes the place of -p; each prefilled, so that what is timed finds its entries, a drafter's too.
  Status read_file_of_prompts() {
    HUNCH_TRY(auto all, read_prompts(engine_.tokenizer(), *flags_.prompt_file, flags_.contexts));
    const int64_t gen = std::ranges::max(flags_.gens);
    dealt_ = dealt(std::move(all), 0, engine_.context_len() - gen - kSlack);
    length_ = std::ssize(dealt_[0].ids);
    for (int64_t i = 0; i < std::ssize(dealt_) && !interrupts_.stopped(); ++i) HUNCH_OK(level(length_, 2, 1, speculation_, 1, i));
    return {};
  }

  // Request `number` begins elsewhere in the text, so that requests share nothing; without a text the tokens are made up.
  Result<Tokens> prompt_of(int64_t length, int64_t number) const {
    if (!dealt_.empty()) return dealt_[number % dealt_.size()].ids;
    Tokens out(length);
    const int64_t vocab = engine_.parts().model->shape().vocab_size, own = flags_.shared ? 0 : number;
    if (!flags_.text_file) {
      for (int64_t i = 0; i < length; ++i)
        out[i] = int32_t((uint64_t(i + 1) * 2654435761u + uint64_t(own) * 40503u) % uint64_t(vocab));
      return out;
    }
    const int64_t size = std::ssize(text_);
    if (size < length) return usage_error("{} holds {} tokens, -p asks for {}", *flags_.text_file, size, length);
    const int64_t most = std::ranges::max(flags_.parallel);
    const int64_t start = own * (size - length) / std::max<int64_t>(1, most - 1);
    std::copy_n(text_.begin() + std::min(start, size - length), length, out.begin());
    return out;
  }

  // `first`: the number of the first request's prompt.
  Result<Level> level(
      int64_t prompt, int64_t gen, int64_t parallel, const SpeculationOptions& speculation, uint64_t seed, int64_t first) {
    std::vector<Request> requests(parallel);
    for (int64_t i = 0; i < parallel; ++i) {
      Request& request = requests[i];
      HUNCH_TRY(request.prompt, prompt_of(prompt, first + i));
      request.max_tokens = gen;
      request.ignore_eos = true;
      request.cache_salt = "bench";  // look-ups see no earlier run
      request.cache_prompt = flags_.shared || flags_.prompt_file.has_value();
      request.sampling.temperature = flags_.temperature.value_or(0.8);
      request.sampling.seed = seed + i;
      request.speculation = speculation;
    }
    Level out;
    std::vector<std::unique_ptr<TokenStream>> streams;
    const auto start = Clock::now();
    for (const Request& request : requests) {
      HUNCH_TRY(auto stream, engine_.submit(request));
      streams.push_back(std::move(stream));
    }
    // One consumer takes turns. A stream whose token is late holds up only the reading: the engine buffers some hundred tokens.
    std::vector<bool> started(streams.size()), done(streams.size());
    for (size_t left = streams.size(); left > 0;) {
      for (size_t i = 0; i < streams.size(); ++i) {
        if (done[i]) continue;
        while (const auto event = streams[i]->next_within(0.2)) {
          if (started[i]) continue;
          started[i] = true;
          out.first_ms.push_back(ms_since(start));
        }
        if (interrupts_.stopped()) streams[i]->cancel();
        if (streams[i]->finished()) done[i] = true, --left;
      }
    }
    out.total_ms = ms_since(start);
    for (auto& stream : streams) {
      HUNCH_TRY(const Generation g, stream->result());
      out.tokens += std::ssize(g.tokens);
      out.per_request_ts.push_back(g.tokens_per_second());
      out.decode_ms = std::max(out.decode_ms, g.milliseconds.first_to_last_token);
      add_counts(g, out.sums);
    }
    out.prompt_ms = out.first_ms.empty() ? 0 : std::ranges::max(out.first_ms);
    return out;
  }

  Status measure(int64_t prompt, int64_t gen, int64_t parallel) {
    Samples plain;
    for (const bool speculate : {false, true}) {
      if (speculate && speculation_.proposer == "none") break;
      Samples all;
      Level last;
      for (int64_t r = 0; r < flags_.repetitions; ++r) {
        if (interrupts_.stopped()) return {};
        HUNCH_TRY(last,
            level(prompt, gen, parallel, speculate ? speculation_ : plain_decoding(), flags_.seed.value_or(7) + r * 1000,
                dealt_.empty() ? 0 : r * parallel));
        all.ns.push_back(int64_t(last.total_ms * 1e6));
        all.speeds.push_back(last.tokens * 1e3 / std::max(1e-6, last.total_ms));
        all.decodes.push_back(last.decode_ts());
        if (speculate && size_t(r) < plain.speeds.size()) {
          all.gains.push_back(all.speeds.back() / plain.speeds[r]);
          all.decode_gains.push_back(all.decodes.back() / plain.decodes[r]);
        }
        add_counts(last.sums, all.sums);
        all.first.insert(all.first.end(), last.first_ms.begin(), last.first_ms.end());
        all.each.insert(all.each.end(), last.per_request_ts.begin(), last.per_request_ts.end());
      }
      if (interrupts_.stopped()) return {};
      print(prompt, gen, parallel, last.prompt_ms, all);
      if (!speculate) plain = std::move(all);
    }
    return {};
  }

  void print(int64_t prompt, int64_t gen, int64_t parallel, double prompt_ms, Samples& all) {
    std::vector<double>& first = all.first;
    std::ranges::sort(first);
    const Generation& sums = all.sums;
    ordered_json extra = {{"n_parallel", parallel}, {"drafter", sums.proposer.empty() ? "none" : sums.proposer},
        {"tokens", flags_.prompt_file.value_or(flags_.text_file.value_or("made up"))}, {"shared_prompt", flags_.shared},
        {"lossless", sums.lossless}, {"prompt_ms", prompt_ms},
        {"first_token_ms_median", first.empty() ? 0 : first[first.size() / 2]},
        {"first_token_ms_most", first.empty() ? 0 : first.back()}, {"decode_ts_per_request", mean_and_deviation(all.each).mean},
        {"decode_ts", mean_and_deviation(all.decodes).mean}};
    if (sums.approximation.any()) extra["approx"] = approximation_json(sums.approximation);
    if (sums.experts_read > 0) extra["experts_read_per_step"] = sums.experts_per_step();
    if (!all.gains.empty()) {
      extra["mean_acceptance_length"] = sums.mean_acceptance_length();
      extra["speedup"] = mean_and_deviation(all.gains).mean;
      extra["stddev_speedup"] = mean_and_deviation(all.gains).deviation;
      extra["decode_speedup"] = mean_and_deviation(all.decode_gains).mean;
      extra["samples_decode_speedup"] = all.decode_gains;
    }
    // A row is one level: generated tokens of all requests over the time from the first request to the last token.
    ordered_json row = bench_row(fields_, {prompt, gen, 0}, all.ns, extra);
    const auto speed = mean_and_deviation(all.speeds);
    row["test"] = fmt::format("{}x pp{}+tg{}", parallel, prompt, gen);
    row["avg_ts"] = speed.mean, row["stddev_ts"] = speed.deviation, row["samples_ts"] = all.speeds;
    write_stdout(printer_.row(row));
  }

  Engine& engine_;
  const BatchFlags& flags_;
  const SpeculationOptions& speculation_;
  ordered_json fields_;
  RowPrinter printer_;
  InterruptScope interrupts_;
  Tokens text_;
  std::vector<BenchPrompt> dealt_;  // with --prompts
  int64_t length_ = 0;              // of each of them
};

void add_batch_flags(FlagSet& set, BatchFlags& flags) {
  set.group("What to measure");
  set.value(
      {"--parallel", "-np", "-npl"}, "LIST", "requests at once (default 1,2,4,8,16)", add_ranges(flags.parallel, {1, 1024}), 2);
  set.value({"-p", "--n-prompt", "-npp", "-d", "--n-depth"}, "LIST", "tokens of each request's prompt (default 512)",
      add_ranges(flags.prompts, {1, 1 << 24}), 2);
  set.value(
      {"-n", "--n-gen", "-ntg"}, "LIST", "tokens that each generates (default 64)", add_ranges(flags.gens, {2, 1 << 20}), 2);
  set.text({"-f", "--file"}, "FILE", "the text that prompts are cut from (default: made-up tokens, on which drafts fail)",
      flags.text_file);
  set.text({"--prompts"}, "FILE",
      "prompts as bench accept reads them, continued from their end; prefilled before, so that decode_ts and "
      "decode_speedup (decoding alone) count",
      flags.prompt_file);
  add_list(set, {"--contexts"}, "with --prompts: values of \"context\" to take (default: all)", {0, 1 << 24}, flags.contexts);
  set.toggle({"--shared-prompt", "-pps"}, "all requests have one prompt, prefilled once", flags.shared);
  set.whole({"-r", "--repetitions"}, "repetitions, 1..1000 (default 1)", {1, 1000}, flags.repetitions);
  set.number({"--temp"}, "temperature (default 0.8)", {0, 100}, flags.temperature);
  set.whole({"-s", "--seed"}, "seed of the first request (default 7)", {0, 0x1p53}, flags.seed);
  set.group("Output");
  set.value({"-o", "--output"}, "FORMAT", "md (default), json, jsonl or csv", FlagSet::stored(flags.format, parse_row_format));
}

}

Result<int> bench_batch_command(Arguments arguments) {
  BatchFlags flags;
  FlagSet set("hunch bench batch [flags]",
      "Throughput of many requests at once, plain and with --spec: generated tokens of all of them over the time from the "
      "first request to the last token, prompts included.");
  add_batch_flags(set, flags);
  add_model_flags(set, flags.model);
  add_speculation_flags(set, flags.speculation);
  if (const auto ended = parsed(set, arguments)) return *ended;
  if (flags.parallel.empty()) flags.parallel = {1, 2, 4, 8, 16};
  if (flags.prompt_file && (flags.text_file || flags.shared || !flags.prompts.empty()))
    return usage_error("--prompts says what is continued: leave out -f, -p and --shared-prompt");
  if (flags.prompts.empty()) flags.prompts = {512};
  if (flags.gens.empty()) flags.gens = {64};
  HUNCH_TRY(auto speculation, asked_speculation(flags.speculation));
  if (speculation.proposer != "none" && !flags.text_file && !flags.prompt_file)
    note("prompts are made up: acceptance, and with it the speed-up, says nothing about texts; name one with -f");
  HUNCH_TRY(auto options, engine_options(flags.model, &flags.speculation));
  // Room for all requests at once: what is measured is sharing of passes, not preemption (--kv-memory measures that).
  const int64_t most = std::ranges::max(flags.parallel);
  const int64_t length = std::ranges::max(flags.prompts) + std::ranges::max(flags.gens) + kSlack;
  options.max_num_seqs = int(most);
  if (options.context_len == 0 && !flags.prompt_file) options.context_len = length;  // a file's prompts: the model's own
  ProgressLine progress;
  HUNCH_TRY(auto engine, load_engine(options, progress));
  const EngineParts& parts = engine->parts();
  BatchBench bench(
      *engine, flags, speculation, engine_fields(*engine, options.model, parts.limits.rows, parts.options.chunk_len));
  HUNCH_OK(bench.run());
  return bench.exit_code();
}

}
