// llama.cpp's flags that mean nothing here, or nothing yet. A harmless one must not break a command that people bring along, one
// that would change the text must not be swallowed.
#include "cli/request_flags.h"

namespace hunch {
namespace {

constexpr const char* kOrder =
    "the order of processing is the same everywhere and cannot be changed: temperature, min-p, top-k, then top-p on what is left";

// A penalty is welcome at the value that switches it off.
void only_neutral(FlagSet& set, std::vector<std::string_view> names, double neutral) {
  const auto check = [neutral](auto flag, auto text) -> Status {
    HUNCH_TRY(const double value, parse_number(flag, text, {}));
    if (value == neutral) return {};
    return usage_error("{}: not available yet; leave it out or at {}", flag, neutral);
  };
  set.value(std::move(names), "X", "", check, 0);
}

}

void add_foreign_flags(FlagSet& set) {
  using A = FlagSet::Arity;
  set.ignore({"-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl"}, A::One);
  set.ignore(
      {"-ngl", "--gpu-layers", "--n-gpu-layers", "-b", "--batch-size", "-ub", "--ubatch-size", "-tb", "--threads-batch"}, A::One);
  set.ignore({"--prio", "--poll", "--numa", "-np", "--parallel", "-C", "--cpu-mask", "-Cr", "--cpu-range", "-lv", "--verbosity",
                 "--keep", "-lm", "--load-mode", "-sm", "--split-mode", "-mg", "--main-gpu", "-ts", "--tensor-split", "-fit",
                 "-fitt", "-fitc", "--spec-draft-sampling", "--spec-draft-p-split", "-ctkd", "-ctvd", "--spec-draft-type-k",
                 "--spec-draft-type-v", "-cd", "-lcs", "-lcd", "--dry-base", "--dry-allowed-length", "--dry-penalty-last-n",
                 "--xtc-threshold", "--mirostat-lr", "--mirostat-ent"},
      A::One);
  // SGLang's: of memory, and of guesses, which change no text.
  set.ignore({"--mem-fraction-static", "--speculative-num-draft-tokens", "--speculative-ngram-max-match-window-size",
                 "--speculative-ngram-min-match-window-size", "--speculative-ngram-max-bfs-breadth",
                 "--speculative-ngram-min-bfs-breadth", "--speculative-ngram-branch-length", "--speculative-ngram-capacity"},
      A::One);
  set.ignore({"-fa", "--flash-attn"}, A::Optional, {"on", "off", "auto", "0", "1", "true", "false", "enabled", "disabled"});
  set.ignore({"--mlock", "--mmap", "--no-mmap", "--no-warmup", "--warmup", "--no-display-prompt", "--simple-io", "-no-cnv",
                 "--no-conversation", "--log-disable", "--jinja", "--no-jinja", "-v", "--verbose", "--offline", "--no-perf",
                 "--perf", "-kvu", "--kv-unified", "-nkvo", "--no-kv-offload", "--no-escape", "-st", "--single-turn",
                 "--no-context-shift", "--spec-default", "--enable-deterministic-inference"},
      A::None);

  set.refuse({"--samplers", "--sampler-seq", "--sampling-seq"}, kOrder);
  set.refuse({"-hf", "--hf-repo", "-hff", "--hf-file", "-hft", "--hf-token", "-mu", "--model-url"},
      "models are not downloaded; name a folder or a GGUF file with -m");
  set.refuse({"-cnv", "--conversation", "-i", "--interactive"}, "use hunch chat");
  set.refuse({"-e", "--escape"}, "escapes are not processed; write the characters themselves, or use -f");
  set.refuse({"--chat-template", "--chat-template-file", "--chat-template-kwargs"}, "this command writes no conversations");
  set.refuse({"--lora", "--lora-scaled", "--control-vector", "--override-kv", "--rope-scaling"}, "not available yet");
  set.refuse({"-dev", "--list-devices"}, "use --device cpu, cuda (where built) or reference");
  only_neutral(set,
      {"--typical", "--typical-p", "--dynatemp-exp", "--speculative-accept-threshold-single",
          "--speculative-accept-threshold-acc", "--rope-scale", "--rope-freq-scale"},
      1);
  only_neutral(set,
      {"--mirostat", "--dry-multiplier", "--xtc-probability", "--dynatemp-range", "--spec-draft-n-min", "--draft-min",
          "--spec-draft-p-min", "--draft-p-min", "--rope-freq-base", "--yarn-orig-ctx"},
      0);
  only_neutral(set, {"--top-nsigma", "--top-n-sigma", "--repeat-last-n", "--yarn-ext-factor"}, -1);
}

void note_ignored(const FlagSet& set) {
  if (!set.ignored().empty()) note(fmt::format("without effect here: {}", fmt::join(set.ignored(), " ")));
}

}
