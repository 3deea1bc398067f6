#include "sparse/policy.h"

namespace hunch {

int64_t kept_entries(const PolicyOptions& options, int64_t valid) {
  if (options.max_tokens > 0) return std::min(valid, options.max_tokens);
  const int64_t wanted = int64_t(std::ceil(options.ratio * double(valid) - 1e-9));
  return std::min(valid, std::max<int64_t>(options.min_tokens, wanted));
}

}
