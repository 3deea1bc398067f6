// Flags for many requests at once: how many, how many rows a pass, whether beginnings are shared. Names are vLLM's, aliases
// llama.cpp's.
#pragma once

#include "cli/flags.h"
#include "hunch/hunch.h"

namespace hunch {

struct ServingFlags {
  std::optional<int64_t> max_num_seqs, max_num_batched_tokens;
  bool prefix_caching = true;
  std::optional<double> memory_share;
};

// To be called before add_foreign_flags(), which ignores llama.cpp's names where they mean nothing.
void add_serving_flags(FlagSet& set, ServingFlags& flags);
// `share`: of the memory that flags give, where other models take the rest.
void apply_serving_flags(const ServingFlags& flags, EngineOptions& options, double share = 1);

}
