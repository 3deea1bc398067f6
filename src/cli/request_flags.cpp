// Ranges are stricter than llama.cpp's: a value that cannot be meant is an error.
#include "cli/request_flags.h"

#include <charconv>
#include <filesystem>

#include "backend/backend.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

// f32, f16, bf16, i16, q8_0, fp8, or vLLM's spellings of them.
Result<std::string> parse_kv_dtype(std::string_view flag, std::string_view text) {
  if (text == "bfloat16") text = "bf16";
  if (text == "float16") text = "f16";
  if (text == "float32") text = "f32";
  if (text == "fp8_e4m3") text = "fp8";
  for (std::string_view other : {"q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1", "fp8_e5m2"})
    if (text == other) return usage_error("{}: {} is not available yet; there are f32, f16, bf16, i16, q8_0, fp8", flag, text);
  static constexpr std::string_view kTypes[] = {"f32", "f16", "bf16", "i16", "q8_0", "fp8"};
  return parse_choice(flag, text, kTypes);
}

// vLLM's spellings too: 32k, 32K, auto.
Result<int64_t> parse_context_len(std::string_view flag, std::string_view text) {
  if (text == "auto") return int64_t(0);
  int64_t unit = 1;
  std::string_view digits = text;
  if (text.size() > 1 && (text.back() == 'k' || text.back() == 'K')) {
    unit = text.back() == 'k' ? 1000 : 1024;
    digits.remove_suffix(1);
  }
  HUNCH_TRY(const int64_t value, parse_whole(flag, digits, {0, double((1 << 24) / unit)}));
  return value * unit;
}

// Also llama.cpp's none, for no GPU, and names of the first one; vLLM's auto: a GPU where there is one.
Result<std::string> parse_device(std::string_view flag, std::string_view text) {
  std::error_code ignored;
  if (text == "auto")
    text = Register<Backend>::find("cuda") && std::filesystem::exists("/dev/nvidiactl", ignored) ? "cuda" : "cpu";
  if (text == "none") text = "cpu";
  if (text == "CUDA0" || text == "cuda:0") text = "cuda";
  if (text == "cuda" && !Register<Backend>::find(text))
    return usage_error("{} cuda: this program has no CUDA backend; scripts/build cuda makes one", flag);
  std::vector<std::string_view> devices;
  for (const auto& part : Register<Backend>::all()) devices.push_back(part.name);
  return parse_choice(flag, text, devices);
}

Result<std::optional<uint64_t>> parse_seed(std::string_view flag, std::string_view text) {
  if (text == "-1") return std::optional<uint64_t>();  // random, as in llama.cpp
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc() || end != text.data() + text.size())
    return usage_error("{} needs -1 (random) or a whole number in 0..18446744073709551615, not {}", flag, excerpt(text));
  return std::optional<uint64_t>(seed);
}

}

void add_model_flags(FlagSet& set, ModelFlags& flags) {
  set.group("Model and machine");
  set.value(
      {"-m", "--model", "--model-path"}, "PATH",
      "Hugging Face folder or GGUF file (default: $HUNCH_MODEL, else the shipped wren-34m.gguf)",
      [&flags](std::string_view, std::string_view v) -> Status {
        flags.model = std::string(v);
        flags.models.push_back(*flags.model);
        return {};
      },
      2);
  set.value({"-c", "--ctx-size", "--context-length", "--max-model-len"}, "N",
      "tokens that prompt and answer may reach; 0: the model's (default); 32k is 32000, 32K is 32768",
      FlagSet::stored(flags.context_len, parse_context_len), 2);
  set.whole_or_default(
      {"-t", "--threads"}, "threads, 1..1024 (default, or -1: all cores this process may use)", {1, 1024}, flags.threads);
  set.toggle({"--check-tensors"}, "look at every weight first, whether it is a finite number", flags.check_tensors);
  set.text({"--trace"}, "FILE", "what the engine does when, for chrome://tracing or ui.perfetto.dev", flags.trace);
  set.text({"--verify-calibration"}, "FILE", "what --verify sparse knows of this model: a file of hunch tune --calibrate-verify",
      flags.verify_calibration);
  set.value({"--kv-memory", "--kv-cache-memory-bytes"}, "SIZE",
      "memory for the KV cache: bytes, or with K, M, G, KiB, MiB, GiB (default: what -c needs for all requests, up to 4 GiB or "
      "0.8 of a GPU)",
      FlagSet::stored(flags.kv_memory_bytes, parse_bytes), 1);
  set.value(
      {"--kv-type", "--kv-cache-dtype"}, "TYPE", "type of the KV cache: f32, f16, bf16, i16, q8_0 or fp8 (default: the device's)",
      [&flags](auto flag, auto v) -> Status {
        flags.key_dtype.reset();  // vLLM's auto: the device's
        if (v != "auto") { HUNCH_TRY(flags.key_dtype, parse_kv_dtype(flag, v)); }
        flags.value_dtype = flags.key_dtype;
        return {};
      },
      1);
  set.value({"-ctk", "--cache-type-k"}, "TYPE", "the same as llama.cpp spells it; keys and values must agree",
      FlagSet::stored(flags.key_dtype, parse_kv_dtype));
  set.value({"-ctv", "--cache-type-v"}, "TYPE", "see -ctk", FlagSet::stored(flags.value_dtype, parse_kv_dtype));
  set.value({"--device", "-dev"}, "NAME",
      "cpu (default), cuda (where built), reference (plain loops, slow), auto (cuda if there)",
      FlagSet::stored(flags.device, parse_device), 1);
  set.choice({"--isa"}, "NAME", "instructions used: portable, avx2, avx512, avx512_vnni or avx512_bf16 (default: the best here)",
      {"portable", "avx2", "avx512", "avx512_vnni", "avx512_bf16"}, flags.isa);
}

void add_prompt_flags(FlagSet& set, PromptFlags& flags) {
  set.group("Prompt");
  set.text({"-p", "--prompt"}, "TEXT", "the text to continue", flags.text);
  set.toggle({"-e", "--escape"}, "\\n, \\t, \\\\, \\\", \\x41 and their like in TEXT are what they stand for", flags.escape);
  set.text({"-f", "--file"}, "FILE", "the text to continue, from a file (-: the standard input)", flags.file);
  set.toggle({"--chat"}, "wrap the text as a user's turn of the model's chat form", flags.chat);
  set.text({"--system", "-sys", "--system-prompt"}, "TEXT", "the system turn before it (with --chat)", flags.system);
  add_chat_template_flags(set, flags.chat_template);
  set.toggle({"--no-bos"}, "do not begin with the model's BOS token", flags.no_bos);
}

void add_sampling_flags(FlagSet& set, SamplingFlags& flags) {
  set.group("Sampling (defaults of hunch run: the model's own, else llama.cpp's)");
  set.value(
      {"-n", "--predict", "--n-predict", "--max-tokens"}, "N", "tokens to write at most; -1: until the context is full (default)",
      [&flags](auto flag, auto v) -> Status {
        HUNCH_TRY(flags.max_tokens, parse_whole(flag, v == "-2" ? "-1" : v, {-1, 0x1p40}));  // llama.cpp's -2 means the same here
        if (flags.max_tokens == 0) return usage_error("{} must be -1 (no limit) or at least 1, not \"0\"", flag);
        return {};
      },
      3);
  set.number({"--temp", "--temperature"}, "temperature; 0: always the likeliest token", {0, 10000}, flags.temperature);
  set.whole({"--top-k"}, "keep the K likeliest tokens; 0: all", {0, 0x1p30}, flags.top_k);
  set.number(
      {"--top-p"}, "keep the likeliest tokens that make up this probability, above 0 and at most 1", {0, 1, true}, flags.top_p);
  set.number({"--min-p"}, "drop tokens less likely than this share of the likeliest, 0..1", {0, 1}, flags.min_p);
  set.value({"-s", "--seed", "--random-seed"}, "N", "seed; -1: random (default)", FlagSet::stored(flags.seed, parse_seed), 2);
  set.number({"--repeat-penalty", "--repetition-penalty"}, "of tokens that the text has, prompt included (default: 1, none)",
      {0.01, 100}, flags.rules.repetition_penalty, 1);
  set.number({"--presence-penalty"}, "of tokens that the answer has (default: 0, none)", {-2, 2}, flags.rules.presence_penalty);
  set.number({"--frequency-penalty"}, "of them by how often (default: 0, none)", {-2, 2}, flags.rules.frequency_penalty);
  set.whole({"--repeat-last-n"}, "", {-1, 0x1p30}, flags.repeat_last_n, 0);
  set.check([&flags]() -> Status {
    const SamplingOptions& rules = flags.rules;
    const bool none = rules.repetition_penalty == 1 && rules.presence_penalty == 0 && rules.frequency_penalty == 0;
    if (none || flags.repeat_last_n <= 0) return {};
    return usage_error("--repeat-last-n: penalties look at the whole text here; set it to -1, or to 0 for none");
  });
  set.value({"-l", "--logit-bias"}, "ID+B", "adds B to the logit of a token, or takes it away: 15043+1, 15043-1; may be repeated",
      [&flags](auto flag, auto v) -> Status {
        const size_t sign = v.find_first_of("+-", 1);
        if (sign == v.npos)
          return usage_error("{} needs a token id and what to add, such as 15043+1 or 15043-1, not {}", flag, excerpt(v));
        HUNCH_TRY(const int64_t id, parse_whole(flag, v.substr(0, sign), {0, 0x1p30}));
        // llama.cpp's "15043-inf" bans.
        const std::string_view bias = v.substr(sign + (v.substr(sign).starts_with('+') ? 1 : 0));
        HUNCH_TRY(const double b, bias == "-inf" ? Result<double>(-100.0) : parse_number(flag, bias, {-100, 100}));
        flags.rules.logit_bias.emplace_back(int32_t(id), float(b));
        return {};
      });
  set.toggle({"--ignore-eos"}, "go on past the model's end of text", flags.ignore_eos);
  set.group("Structure of the output");
  add_structured_flags(set, flags.structured);
}

void add_color_flag(FlagSet& set, ColorWish& color) {
  set.value({"--color", "-co"}, "WHEN", "auto (default), always or never; NO_COLOR and CLICOLOR_FORCE are honoured",
      FlagSet::stored(color, parse_color), 1, FlagSet::Arity::Optional);
}

void add_output_flags(FlagSet& set, OutputFlags& flags) {
  set.group("Output");
  set.value(
      {"--stop", "-r", "--reverse-prompt"}, "TEXT", "end before this text; may be repeated",
      [&flags](auto flag, auto v) -> Status {
        if (v.empty()) return usage_error("{}: the text must not be empty", flag);
        flags.stop.emplace_back(v);
        return {};
      },
      1);
  set.toggle({"--special", "-sp"}, "special tokens of the answer are text, too", flags.special);
  set.toggle({"--stats"}, "end with statistics on stderr", flags.stats);
  set.toggle({"--json"}, "print one JSON object and nothing else on stdout", flags.json);
  add_color_flag(set, flags.color);
}

void add_run_flags(FlagSet& set, RunFlags& flags) {
  add_prompt_flags(set, flags.prompt);
  add_generating_flags(set, flags);
  add_output_flags(set, flags.output);
  add_foreign_flags(set);
}

Result<EngineOptions> engine_options(const ModelFlags& flags, const SpeculationFlags* speculation) {
  EngineOptions options;
  if (flags.random && flags.model) return usage_error("--random and --model name two models: give one");
  if (flags.random) {
    options.model = *flags.random, options.random_weights = flags.random_type;
  } else {
    HUNCH_TRY(options.model, model_path(flags.model));
  }
  if (flags.key_dtype != flags.value_dtype) {  // one given alone would leave the other to a default that may differ
    return usage_error("keys and values of the KV cache have one type here: -ctk {} -ctv {} do not agree; use --kv-type",
        flags.key_dtype.value_or("(none)"), flags.value_dtype.value_or("(none)"));
  }
  options.kv_dtype = flags.key_dtype.value_or("");
  options.device = flags.device;
  options.isa = flags.isa;
  if (!flags.isa.empty() && flags.device != "cpu") return usage_error("--isa is for --device cpu, not {}", flags.device);
  options.threads = int(flags.threads.value_or(0));
  options.check_tensors = flags.check_tensors;
  options.context_len = flags.context_len.value_or(0);
  options.kv_memory_bytes = flags.kv_memory_bytes;
  HUNCH_OK(keeps(options.model, flags.trace));
  options.trace = flags.trace.value_or("");
  options.verify_calibration = flags.verify_calibration.value_or("");
  if (speculation) {
    HUNCH_TRY(options.drafters, resolve_drafters(*speculation));
    options.reuse_schedule = speculation->reuse_schedule, options.strategies = speculation->strategies;
  }
  return options;
}

Request request_of(const SamplingFlags& sampling, const SpeculationOptions& speculation) {
  Request request;
  request.max_tokens = sampling.max_tokens.value_or(-1);
  request.ignore_eos = sampling.ignore_eos;
  request.sampling = sampling.rules;
  if (sampling.repeat_last_n == 0)
    request.sampling.repetition_penalty = 1, request.sampling.presence_penalty = request.sampling.frequency_penalty = 0;
  request.sampling.temperature = sampling.temperature;
  request.sampling.top_p = sampling.top_p;
  request.sampling.min_p = sampling.min_p;
  if (sampling.top_k) request.sampling.top_k = int(*sampling.top_k);
  request.sampling.seed = sampling.seed;
  request.speculation = speculation;
  request.structured = sampling.structured;
  return request;
}

Request request_of(const RunFlags& flags, const SpeculationOptions& speculation) {
  Request request = request_of(flags.sampling, speculation);
  request.stop = flags.output.stop;
  if (flags.prompt.escape)
    for (std::string& text : request.stop) text = unescaped(text);
  request.skip_special_tokens = !flags.output.special;
  return request;
}

}
