#include "sparse/policy.h"

namespace hunch {

int64_t kept_entries(const PolicyOptions& options, int64_t valid) {
  const int64_t wanted = int64_t(std::ceil(options.ratio * double(valid) - 1e-9));
  const int64_t kept = std::min(valid, std::max<int64_t>(options.min_tokens, wanted));
  return options.max_tokens > 0 ? std::min(kept, options.max_tokens) : kept;
}

}
