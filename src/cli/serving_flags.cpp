#include "cli/serving_flags.h"

#include "cli/terminal.h"

namespace hunch {

void add_serving_flags(FlagSet& set, ServingFlags& flags) {
  set.group("Requests at once");
  set.value(
      {"--max-num-seqs", "-np", "--parallel", "--max-running-requests"}, "N",
      "requests that run at once, 1..4096 (default, and -1: 16, on a GPU 256); more wait",
      [&flags](auto flag, auto v) -> Status {
        flags.max_num_seqs.reset();
        if (v != "-1") { HUNCH_TRY(flags.max_num_seqs, parse_whole(flag, v, {1, 4096})); }
        return {};
      },
      2);
  set.whole({"--max-num-batched-tokens", "-b", "--batch-size", "--chunked-prefill-size"},
      "tokens of one pass, all requests together (default: what suits)", {1, 1 << 20}, flags.max_num_batched_tokens, 2);
  set.number({"--gpu-memory-utilization"},
      "share of a GPU's memory that model and KV cache fill (default: up to 0.8, as --max-num-seqs contexts need)", {0, 1, true},
      flags.memory_share);
  set.toggle({"--enable-prefix-caching"}, "requests share the KV entries of equal beginnings (default)", flags.prefix_caching);
  set.toggle({"--no-enable-prefix-caching", "--disable-radix-cache"}, "they do not; the same answers, slower",
      flags.prefix_caching, false);
}

void apply_serving_flags(const ServingFlags& flags, EngineOptions& options, double share) {
  if (flags.max_num_seqs) options.max_num_seqs = int(*flags.max_num_seqs);
  options.max_num_batched_tokens = int(flags.max_num_batched_tokens.value_or(0));
  options.prefix_caching = flags.prefix_caching;
  options.memory_share = flags.memory_share.value_or(options.memory_share) * share;
  options.fill_memory = flags.memory_share.has_value();
  if (flags.memory_share && (options.device == "cpu" || options.kv_memory_bytes > 0))
    note(fmt::format("--gpu-memory-utilization has no effect {}", options.device == "cpu" ? "on a CPU" : "beside --kv-memory"));
}

}
