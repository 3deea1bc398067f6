#include "backend/backend.h"

#include <bit>

namespace hunch {

Buffer Backend::constant_ids(std::span<const int32_t> ids) {
  std::vector<float> bits(ids.size());
  std::ranges::transform(ids, bits.begin(), [](int32_t id) { return std::bit_cast<float>(id); });
  return constant(bits);
}

void Backend::feed_forward(const FeedForwardArgs& args) {
  const Product both[] = {{args.gate, nullptr, args.gate_out}, {args.up, nullptr, args.up_out}};
  matmul({.x = args.x, .products = both});
  gate({.gate = args.gate_out, .up = args.up_out, .out = args.gate_out});
  const Product down[] = {{args.down, nullptr, args.out}};
  matmul({.x = args.gate_out, .products = down, .accumulate = true});
}

void Backend::ready_heads(const ReadyHeadsArgs& args) {
  const auto one = [&](const View<float, 3>& x, const float* weight) {
    const View<float, 2> heads(x.data, x.extent[0] * x.extent[1], x.extent[2]);
    if (weight) norm({.x = heads, .weight = weight, .eps = args.eps, .out = heads});
    rope({.x = x, .cos_sin = args.cos_sin, .pairs = args.pairs});
  };
  if (args.q.extent[1] > 0) one(args.q, args.q_norm);
  one(args.k, args.k_norm);
}

}
