// hunch bench: llama-bench's tests with its flags, names and columns, so that command lines and scripts carry over. Prompts and
// tokens are random, sampling is not timed, a warm-up run goes before the repetitions. With --spec and a prompt file each
// generation test has a second row: the text continued with speculation, in turn with plain decoding.
#include "cli/bench.h"

#include "api/answer_json.h"
#include "cli/generating.h"
#include "cli/report.h"
#include "engine/approximation.h"
#include "engine/token_run.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;
constexpr int64_t kMostTokens = 1 << 24;

int64_t ns_since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

struct LlamaFlags {
  // Lists; empty: the default. Repeating a flag adds to its list.
  std::vector<int64_t> prompts, gens, depths, threads, batches, chunks;
  std::vector<std::string> models, key_types, value_types;
  std::vector<std::pair<int64_t, int64_t>> pairs;  // -pg
  int64_t repetitions = 5, gen_warmup = 1;
  std::optional<double> delay;
  std::optional<int64_t> seed;
  std::optional<double> temperature;
  bool warmup = true, progress = false, prefill = false;
  RowFormat format = RowFormat::Markdown;
  std::optional<RowFormat> error_format;
  std::optional<std::string> text_file;
  std::string device = "cpu", isa;
  SpeculationFlags speculation;
};

std::vector<int64_t> or_default(const std::vector<int64_t>& list, int64_t value) {
  return list.empty() ? std::vector{value} : list;
}

// Comma-separated words, added to `target`.
FlagSet::Set words(std::vector<std::string>& target) {
  return [&target](auto flag, auto text) -> Status {
    return each_item(text, [&](auto word) -> Status {
      if (word.empty()) return usage_error("{}: an empty value", flag);
      target.emplace_back(word);
      return {};
    });
  };
}

void add_test_flags(FlagSet& set, LlamaFlags& flags) {
  set.group("Tests (lists by comma; ranges a-b, a-b+step, a-b*factor; a repeated flag adds)");
  set.value(
      {"-p", "--n-prompt"}, "LIST", "prompt tokens; 0: no such test (default 512)", add_ranges(flags.prompts, {0, kMostTokens}));
  set.value(
      {"-n", "--n-gen"}, "LIST", "generated tokens; 0: no such test (default 128)", add_ranges(flags.gens, {0, kMostTokens}));
  set.value({"-pg"}, "PP,TG", "a prompt, then generated tokens, as one test", [&flags](auto flag, auto text) -> Status {
    HUNCH_TRY(const auto both, parse_ranges(flag, text, {0, kMostTokens}));
    if (both.size() != 2) return usage_error("{} needs two numbers, as in {} 512,128", flag, flag);
    flags.pairs.emplace_back(both[0], both[1]);
    return {};
  });
  set.value({"-d", "--n-depth", "--depths"}, "LIST", "tokens in the KV cache before a test (default 0)",
      add_ranges(flags.depths, {0, kMostTokens}), 2);
  set.whole({"-r", "--repetitions"}, "repetitions, 1..1000 (default 5)", {1, 1000}, flags.repetitions);
  set.toggle({"--prefill-depth"}, "fill the depth with a prompt of random tokens (slow), not with noise of the same shape",
      flags.prefill);
  set.toggle({"--no-warmup"}, "no warm-up run", flags.warmup, false);
  set.whole({"--n-gen-warmup"}, "tokens of the warm-up of a generation test (default 1)", {1, 4096}, flags.gen_warmup);
  set.number({"--delay"}, "seconds between tests", {0, 3600}, flags.delay);

  set.group("Model and machine");
  set.value(
      {"-m", "--model"}, "LIST", "folders or GGUF files (default: $HUNCH_MODEL, else the shipped one)", words(flags.models));
  set.value(
      {"-t", "--threads"}, "LIST", "threads (default: all cores this process may use)", add_ranges(flags.threads, {1, 1024}));
  set.value({"-b", "--batch-size"}, "LIST", "most rows of a pass (default 2048; -ub bounds it too)",
      add_ranges(flags.batches, {2, 1 << 16}));
  set.value({"-ub", "--ubatch-size"}, "LIST", "rows of a prompt chunk (default 512)", add_ranges(flags.chunks, {2, 1 << 14}));
  set.value({"-ctk", "--cache-type-k"}, "LIST", "type of the KV cache's keys (default: the device's); -ctv must agree",
      words(flags.key_types));
  set.value({"-ctv", "--cache-type-v"}, "LIST", "type of its values", words(flags.value_types));
  set.text({"--device"}, "NAME", "cpu (default), cuda (where built), reference", flags.device);
  set.text({"--isa"}, "NAME", "portable, avx2, avx512, avx512_vnni or avx512_bf16 (default: the best here)", flags.isa);

  set.group("Rows with speculation");
  set.text(
      {"-f", "--file"}, "FILE", "the text to continue: acceptance depends on it, random tokens say nothing", flags.text_file);
  set.number({"--temp"}, "temperature (default 0.8)", {0, 100}, flags.temperature);
  set.whole({"-s", "--seed"}, "seed of the first repetition (default 7)", {0, 0x1p53}, flags.seed);
}

void add_output_flags(FlagSet& set, LlamaFlags& flags) {
  set.group("Output");
  set.value({"-o", "--output"}, "FORMAT", "md (default), json, jsonl or csv", FlagSet::stored(flags.format, parse_row_format));
  set.value(
      {"-oe", "--output-err"}, "FORMAT", "the same rows on stderr too", FlagSet::stored(flags.error_format, parse_row_format));
  set.toggle({"--json"}, "the same as -o json", [&flags] { flags.format = RowFormat::Json; });
  set.toggle({"--progress"}, "name each test on stderr as it starts", flags.progress);
}

// llama-bench's flags that have nothing to act on here; each takes a value, as there.
void add_idle_flags(FlagSet& set) {
  using A = FlagSet::Arity;
  set.ignore(
      {"-ngl", "--n-gpu-layers", "-ncmoe", "--n-cpu-moe", "-sm", "--split-mode", "-mg", "--main-gpu", "-nkvo", "--no-kv-offload",
          "-fa", "--flash-attn", "-dev", "-lm", "--load-mode", "-lzm", "-mmp", "--mmap", "-embd", "--embeddings", "-ts",
          "--tensor-split", "-ot", "--override-tensor", "-nopo", "--no-op-offload", "--no-host", "--repack", "--numa", "--prio",
          "-C", "--cpu-mask", "--poll", "--cpu-strict", "-fitt", "--fit-target", "-fitc", "--fit-ctx", "--lazy-mode"},
      A::One);
  set.ignore({"-v", "--verbose", "--offline"}, A::None);
  set.refuse({"-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "-hft", "--hf-token"},
      "models are not downloaded; name a folder or a GGUF file with -m");
}

// One engine's worth of settings.
struct Setting {
  std::string model, kv_type;
  int64_t threads = 0, batch = 2048, chunk = 512;
};

class LlamaBench {
 public:
  LlamaBench(const LlamaFlags& flags, const SpeculationOptions& speculation, ProgressLine& progress)
      : flags_(flags),
        speculation_(speculation),
        progress_(progress),
        printer_(flags.format, optional_columns(flags, speculation)),
        error_printer_(flags.error_format.value_or(RowFormat::Markdown), optional_columns(flags, speculation)) {}

  Result<int> run(const std::vector<Setting>& settings) {
    for (const Setting& setting : settings) {
      if (interrupts_.stopped()) break;
      HUNCH_OK(run(setting));
    }
    print(printer_.end(), flags_.error_format ? error_printer_.end() : "");
    if (flags_.format == RowFormat::Markdown) print(fmt::format("\nbuild: hunch {}\n", build_commit()), "");
    if (interrupts_.stopped()) complain("interrupted: the rows so far are all there is");
    return interrupts_.exit_code();
  }

 private:
  static std::vector<std::string> optional_columns(const LlamaFlags& flags, const SpeculationOptions& speculation) {
    std::vector<std::string> out;
    if (flags.chunks.size() > 1) out.push_back("n_ubatch");
    if (!flags.key_types.empty()) out.push_back("type_k");
    if (speculation.proposer != "none")
      for (const char* name : {"drafter", "mean_acceptance_length", "speedup"}) out.emplace_back(name);
    return out;
  }

  std::vector<int64_t> depths() const { return or_default(flags_.depths, 0); }

  // llama-bench's order: all prompts, all generations, all pairs.
  std::vector<BenchTest> tests_at(int64_t depth) const {
    std::vector<BenchTest> out;
    for (int64_t n : or_default(flags_.prompts, 512))
      if (n > 0) out.push_back({n, 0, depth});
    for (int64_t n : or_default(flags_.gens, 128))
      if (n > 0) out.push_back({0, n, depth});
    for (const auto& [prompt, gen] : flags_.pairs)
      if (prompt + gen > 0) out.push_back({prompt, gen, depth});
    return out;
  }

  Status run(const Setting& setting) {
    EngineOptions options;
    options.model = setting.model;
    options.kv_dtype = setting.kv_type;
    options.threads = int(setting.threads);
    options.device = flags_.device, options.isa = flags_.isa;
    options.chunk_len = int(std::min(setting.chunk, setting.batch));
    options.prefix_caching = speculation_.proposer != "none";
    for (int64_t depth : depths())
      for (const BenchTest& test : tests_at(depth))
        options.context_len = std::max(options.context_len, depth + test.tokens() + 1 + kSlack);
    HUNCH_TRY(options.drafters, resolve_drafters(flags_.speculation));
    options.reuse_schedule = flags_.speculation.reuse_schedule, options.strategies = flags_.speculation.strategies;
    HUNCH_TRY(engine_, load_engine(options, progress_));
    fields_ = engine_fields(*engine_, setting.model, setting.batch, options.chunk_len);
    chunk_ = options.chunk_len;
    if (flags_.text_file) { HUNCH_TRY(text_ids_, read_tokens(*engine_, *flags_.text_file)); }
    for (int64_t depth : depths())
      for (const BenchTest& test : tests_at(depth)) {
        if (interrupts_.stopped()) return {};
        if (flags_.progress) complain(fmt::format("{}, {} threads: {}", setting.model, setting.threads, test.name()));
        HUNCH_OK(plain(test));
        if (flags_.text_file && speculation_.proposer != "none" && test.n_prompt == 0) HUNCH_OK(speculating(test));
        if (flags_.delay) std::this_thread::sleep_for(std::chrono::duration<double>(*flags_.delay));
      }
    engine_.reset();  // before the next one takes its memory
    return {};
  }

  Tokens random_tokens(int64_t n, uint32_t salt) const {
    const NoiseKey key{7, salt};
    const uint64_t vocab = uint64_t(engine_->parts().model->shape().vocab_size);
    Tokens out(n);
    for (int64_t i = 0; i < n; ++i) out[i] = int32_t((uint64_t(noise_bits(key, NoiseStream::Target, i, 0)) * vocab) >> 32);
    return out;
  }

  // A prompt in chunks, with the logits of its last token; then token by token.
  void run_once(TokenRun& run, const Tokens& tokens, int64_t n_prompt) const {
    const std::span<const int32_t> all(tokens);
    if (n_prompt > 0) run.feed(all.first(n_prompt), chunk_, TokenRun::Logits::Last);
    run.feed(all.subspan(n_prompt), 1, TokenRun::Logits::All);
  }

  Status plain(const BenchTest& test) {
    HUNCH_TRY(const auto run, TokenRun::make(engine_->parts(), test.n_depth + test.tokens(), interrupts_.flag()));
    if (flags_.prefill) {
      run->feed(random_tokens(test.n_depth, 1), chunk_, TokenRun::Logits::None);
    } else {
      run->fill(test.n_depth);
    }
    const Tokens tokens = random_tokens(test.tokens(), 2);
    if (flags_.warmup && !interrupts_.stopped()) {
      const int64_t gen = test.n_prompt > 0 ? 0 : std::min(test.n_gen, flags_.gen_warmup);
      run_once(*run, Tokens(tokens.begin(), tokens.begin() + test.n_prompt + gen), test.n_prompt);
    }
    std::vector<int64_t> samples;
    for (int64_t r = 0; r < flags_.repetitions && !interrupts_.stopped(); ++r) {
      run->rewind(test.n_depth);
      const auto start = Clock::now();
      run_once(*run, tokens, test.n_prompt);
      if (!interrupts_.stopped()) samples.push_back(std::max<int64_t>(1, ns_since(start)));
    }
    HUNCH_OK(run->status());
    if (samples.empty()) return {};
    ordered_json extra = {{"drafter", "none"}, {"tokens", "random"}, {"lossless", true}};
    extra["depth_fill"] = test.n_depth == 0 ? "none" : flags_.prefill ? "prefill" : "noise";
    print_row(bench_row(fields_, test, samples, extra));
    return {};
  }

  // The last n_depth tokens of the text are continued plainly and with speculation, in turn, with the same seeds.
  Status speculating(const BenchTest& test) {
    if (test.n_depth == 0) {
      note(fmt::format("{}: no row with speculation, since there is no text before it; give -d", test.name()));
      return {};
    }
    if (std::ssize(text_ids_) < test.n_depth)
      return usage_error("{} holds {} tokens, -d asks for {}", *flags_.text_file, text_ids_.size(), test.n_depth);
    Request request;
    request.prompt.assign(text_ids_.end() - test.n_depth, text_ids_.end());
    request.ignore_eos = true;
    request.cache_prompt = true;  // one prefill for all repetitions
    request.sampling.temperature = flags_.temperature.value_or(0.8);
    std::vector<int64_t> samples;
    std::vector<double> speedups, plain_speeds;
    Generation sums;
    bool equal = true;
    for (int64_t r = -int64_t(flags_.warmup); r < flags_.repetitions && !interrupts_.stopped(); ++r) {
      request.sampling.seed = flags_.seed.value_or(7) + std::max<int64_t>(0, r);
      request.max_tokens =
          (r < 0 ? std::min<int64_t>(test.n_gen, 8) : test.n_gen) + 1;  // the first comes out of the prompt's pass
      request.speculation = plain_decoding();
      HUNCH_TRY(const Generation base, engine_->generate(request, {}, interrupts_.flag()));
      request.speculation = speculation_;
      HUNCH_TRY(Generation g, engine_->generate(request, {}, interrupts_.flag()));
      if (interrupts_.stopped()) return {};
      if (r < 0) continue;
      samples.push_back(std::max<int64_t>(1, int64_t(g.milliseconds.first_to_last_token * 1e6)));
      plain_speeds.push_back(base.tokens_per_second());
      speedups.push_back(g.tokens_per_second() / std::max(1e-9, base.tokens_per_second()));
      equal = equal && g.tokens == base.tokens;
      add_counts(g, sums);
    }
    if (samples.empty()) return {};
    const auto speedup = mean_and_deviation(speedups), base = mean_and_deviation(plain_speeds);
    ordered_json extra = {{"drafter", sums.proposer}, {"tokens", *flags_.text_file}, {"lossless", sums.lossless},
        {"policy", sums.policy}, {"rule", sums.rule}, {"gamma", sums.gamma}, {"ratio", sums.ratio},
        {"temperature", *request.sampling.temperature}, {"mean_acceptance_length", sums.mean_acceptance_length()},
        {"plain_ts", base.mean}, {"stddev_plain_ts", base.deviation}, {"speedup", speedup.mean},
        {"stddev_speedup", speedup.deviation}, {"same_tokens_as_plain", equal},
        {"acceptance_by_position", sums.acceptance_by_position()}, {"milliseconds", time_split(sums)}};
    if (sums.experts_read > 0) extra["experts_read_per_step"] = sums.experts_per_step();
    if (sums.approximation.any()) extra["approx"] = approximation_json(sums.approximation);
    print_row(bench_row(fields_, test, samples, extra));
    return {};
  }

  void print_row(const ordered_json& row) {
    progress_.clear();
    print(printer_.row(row), flags_.error_format ? error_printer_.row(row) : "");
  }
  void print(const std::string& out, const std::string& err) {
    written_ = written_ && write_stdout(out);
    std::fputs(err.c_str(), stderr);
  }

  const LlamaFlags& flags_;
  const SpeculationOptions& speculation_;
  ProgressLine& progress_;
  RowPrinter printer_, error_printer_;
  InterruptScope interrupts_;
  std::unique_ptr<Engine> engine_;
  ordered_json fields_;
  Tokens text_ids_;
  int chunk_ = 512;
  bool written_ = true;
};

// Every combination of the lists, the model slowest, as llama-bench nests them.
Result<std::vector<Setting>> settings_of(const LlamaFlags& flags) {
  if (flags.key_types != flags.value_types)
    return usage_error("keys and values of the KV cache have one type here: -ctk {} and -ctv {} must agree",
        flags.key_types.empty() ? "(none)" : fmt::format("{}", fmt::join(flags.key_types, ",")),
        flags.value_types.empty() ? "(none)" : fmt::format("{}", fmt::join(flags.value_types, ",")));
  std::vector<std::string> models = flags.models, types = flags.key_types;
  if (models.empty()) {
    HUNCH_TRY(std::string model, model_path(std::nullopt));
    models.push_back(std::move(model));
  }
  if (types.empty()) types.emplace_back();
  std::vector<Setting> out;
  for (const std::string& model : models)
    for (int64_t batch : or_default(flags.batches, 2048))
      for (int64_t chunk : or_default(flags.chunks, 512))
        for (const std::string& type : types)
          for (int64_t threads : or_default(flags.threads, 0)) out.push_back({model, type, threads, batch, chunk});
  return out;
}

Result<int> llama_bench_command(Arguments arguments) {
  LlamaFlags flags;
  FlagSet set("hunch bench [passes|rounds|prefill|kernels|batch|accept|breakeven|ssv] [flags]",
      "Times prompts and generation with llama-bench's flags, names and columns. Other measurements: bench passes (single "
      "passes against what memory gives, whole requests, start), bench batch (many requests at once), bench accept "
      "(acceptance over a file of prompts); each has its own --help.");
  add_test_flags(set, flags);
  add_speculation_flags(set, flags.speculation);
  add_output_flags(set, flags);
  add_idle_flags(set);
  if (const auto ended = parsed(set, arguments)) return *ended;
  HUNCH_TRY(auto speculation, asked_speculation(flags.speculation));
  HUNCH_TRY(auto settings, settings_of(flags));
  if (speculation.proposer != "none" && !flags.text_file)
    note("no rows with speculation: random tokens say nothing about acceptance; name a text with -f");
  if (speculation.proposer == "none" && flags.text_file) note("-f has no effect without --spec");
  note_ignored(set);
  ProgressLine progress;
  return LlamaBench(flags, speculation, progress).run(settings);
}

}

SpeculationOptions plain_decoding() {
  SpeculationOptions out;
  out.proposer = "none";
  return out;
}

Result<SpeculationOptions> asked_speculation(const SpeculationFlags& flags) {
  if (flags.flags.empty() && flags.drafters.empty() && !flags.config && !flags.unverified) return plain_decoding();
  return resolve_speculation(flags);
}

void add_counts(const Generation& g, Generation& sums) {
  sums.proposer = g.proposer, sums.policy = g.policy, sums.rule = g.rule;
  sums.ratio = g.ratio, sums.gamma = g.gamma;
  sums.lossless = sums.lossless && g.lossless;
  sums.approximation.add(g.approximation);
  sums.steps += g.steps, sums.experts_read += g.experts_read;
  sums.rounds += g.rounds, sums.drafted += g.drafted, sums.accepted += g.accepted;
  const size_t positions = std::max(sums.drafted_by_position.size(), g.drafted_by_position.size());
  sums.drafted_by_position.resize(positions), sums.accepted_by_position.resize(positions);
  for (size_t i = 0; i < g.drafted_by_position.size(); ++i) {
    sums.drafted_by_position[i] += g.drafted_by_position[i];
    sums.accepted_by_position[i] += g.accepted_by_position[i];
  }
  sums.milliseconds.draft += g.milliseconds.draft;
  sums.milliseconds.verify += g.milliseconds.verify;
  sums.milliseconds.select += g.milliseconds.select;
  sums.milliseconds.first_to_last_token += g.milliseconds.first_to_last_token;
}

ordered_json time_split(const Generation& g) {
  const Timings& ms = g.milliseconds;
  return {{"draft", ms.draft}, {"verify", ms.verify}, {"select", ms.select}, {"decode", ms.first_to_last_token}};
}

void add_format_flag(FlagSet& set, bool& json) {
  set.value({"-o", "--output"}, "FORMAT", "md (default) or json", [&json](auto flag, auto text) -> Status {
    static constexpr std::string_view kFormats[] = {"md", "json"};
    HUNCH_OK(parse_choice(flag, text, kFormats));
    json = text == "json";
    return {};
  });
}

Result<int> bench_command(Arguments arguments) {
  constexpr std::pair<std::string_view, CommandFunction*> kOthers[] = {{"accept", bench_accept_command},
      {"batch", bench_batch_command}, {"breakeven", bench_breakeven_command}, {"kernels", bench_kernels_command},
      {"prefill", bench_prefill_command}, {"rounds", bench_rounds_command}, {"passes", bench_passes_command},
      {"ssv", bench_ssv_command}};
  for (const auto& [name, command] : kOthers)
    if (!arguments.empty() && arguments[0] == name) return command(arguments.subspan(1));
  if (!arguments.empty() && arguments[0] == "--flag-names")
    for (const auto& other : kOthers) write_stdout(fmt::format("{}\n", other.first));
  // --only was this command's own before `passes` had a name.
  for (const std::string& argument : arguments)
    if (argument == "--only" || argument.starts_with("--only=")) return bench_passes_command(arguments);
  return llama_bench_command(arguments);
}

}
