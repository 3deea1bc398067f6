#include "cli/foreign_flags.h"

#include <algorithm>

#include "cli/terminal.h"

namespace hunch {
namespace {

constexpr const char* kOrder =
    "the order of processing is the same everywhere and cannot be changed: temperature, min-p, top-k, then top-p on what is left";

std::optional<double> number_of(std::string_view text) {
  auto number = parse_number("", text, {});
  return number.ok() ? std::optional(*number) : std::nullopt;
}

}

FlagSet::Names words(std::string_view text) {
  FlagSet::Names out;
  for (size_t at = 0, end; (at = text.find_first_not_of(" \n", at)) != text.npos; at = end) {
    end = std::min(text.find_first_of(" \n", at), text.size());
    out.push_back(text.substr(at, end - at));
  }
  return out;
}

void only_at(FlagSet& set, std::string_view names, std::string_view values) {
  const auto check = [values](auto flag, auto given) -> Status {
    for (const std::string_view value : words(values))
      if (given == value || (number_of(value) && number_of(given) == number_of(value))) return {};
    return usage_error("{}: not available yet; leave it out or at {}", flag, fmt::join(words(values), ", "));
  };
  set.value(words(names), "X", "", check, 0);
}

void add_foreign_flags(FlagSet& set) {
  using A = FlagSet::Arity;
  const auto values = words("on off auto 0 1 true false enabled disabled");
  // Machine and memory.
  set.ignore(words(R"(-ngl --gpu-layers --n-gpu-layers -ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl
-b --batch-size -ub --ubatch-size -tb --threads-batch -td --threads-draft -tbd --threads-batch-draft --prio --prio-batch --poll
--poll-batch --numa -np --parallel -C -Cr -Cb -Crb --cpu-mask --cpu-range --cpu-mask-* --cpu-range-* --cpu-strict --cpu-strict-*
-lm --load-mode -sm --split-mode -mg --main-gpu -ts --tensor-split -fit -fitt -fitc -ncmoe --n-cpu-moe
-ot --override-tensor -cram --cache-ram -ctxcp --ctx-checkpoints -dt --defrag-thold --mem-fraction-static)"),
      A::One);
  set.ignore(words(R"(--mlock --mmap --no-mmap -dio --direct-io --no-warmup --warmup -kvu --kv-unified
-no-kvu --no-kv-unified -kvo --kv-offload -nkvo --no-kv-offload --op-offload --no-op-offload --repack -nr --no-repack --no-host
-cmoe --cpu-moe --swa-full -cb --cont-batching -nocb --no-cont-batching -bs --backend-sampling
--enable-deterministic-inference)"),
      A::None);
  set.ignore(words("-fa --flash-attn"), A::Optional, values);
  // How and how much is guessed, which changes no text.
  set.ignore(
      words(R"(--spec-draft-sampling --spec-draft-p-* --spec-draft-n-min --draft-min --draft-n-min --draft-p-min -ctkd -ctvd
--cache-type-k-draft --cache-type-v-draft --spec-draft-type-* -cd --ctx-size-draft -devd --device-draft -lcs -lcd --lookup-cache-*
--spec-ngram-* --speculative-num-draft-tokens --speculative-ngram-*)"),
      A::One);
  set.ignore(words("--spec-default"), A::None);
  // What is shown.
  set.ignore(
      words("-lv --verbosity --log-verbosity --log-file --reasoning-format -ptc --print-token-count --in-prefix --in-suffix"),
      A::One);
  set.ignore(words("--log-colors"), A::Optional, values);
  set.ignore(words(R"(--display-prompt --no-display-prompt --simple-io -no-cnv --no-conversation --log-disable --log-prefix
--log-timestamps --jinja --no-jinja -v --verbose --offline --no-perf --perf --no-escape -st --single-turn -mli --multiline-input
--no-context-shift)"),
      A::None);
  // Of samplers that are switched off by others.
  set.ignore(
      words("--keep --dry-base --dry-allowed-length --dry-penalty-last-n --xtc-threshold --mirostat-lr --mirostat-ent"), A::One);
  only_at(set, "--typical --typical-p --dynatemp-exp --speculative-accept-threshold-* --rope-scale --rope-freq-scale", "1");
  only_at(set, "--mirostat --dry-multiplier --xtc-probability --dynatemp-range --rope-freq-base --yarn-orig-ctx", "0");
  only_at(set, "--top-nsigma --top-n-sigma --repeat-last-n --yarn-ext-factor --reasoning-budget", "-1");
  only_at(set, "--yarn-attn-factor --yarn-beta-slow", "-1 1");
  only_at(set, "--yarn-beta-fast", "-1 32");

  set.refuse(words("--samplers --sampler-seq --sampling-seq"), kOrder);
  set.refuse(words("-hf -hfr --hf-repo -hff --hf-file -hft --hf-token -mu --model-url -dr --docker-repo"),
      "models are not downloaded; name a folder or a GGUF file with -m");
  set.refuse(words("-cnv --conversation -i --interactive -if --interactive-first"), "use hunch chat");
  set.refuse(words("--chat-template --chat-template-file --chat-template-kwargs"), "this command writes no conversations");
  set.refuse(words("--lora --lora-scaled --control-vector --control-vector-scaled --override-kv"), "not available yet");
  set.refuse(words("--rope-scaling"), "positions are scaled as the model says; leave it out");
  set.refuse(words("--context-shift"), "an answer ends where the context is full");
  set.refuse(words("--spec-synth-len --spec-synth-rates"), "use hunch bench rounds --synthetic-acceptance");
  set.refuse(words("--list-devices"), "hunch doctor says what there is");
}

void note_ignored(const FlagSet& set) {
  if (!set.ignored().empty()) note(fmt::format("without effect here: {}", fmt::join(set.ignored(), " ")));
}

}
