// RMS norm (Zhang and Sennrich, 2019) and the SwiGLU gate: contract in backend/ops/norm.h.

#include "backend/ops/norm.h"

#include "backend/reference/reference_backend.h"

namespace hunch {

void ReferenceBackend::norm(const NormArgs& args) {
  const int64_t n = args.x.extent[1];
  for (int64_t r = 0; r < args.x.extent[0]; ++r) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += double(args.x(r, i)) * double(args.x(r, i));
    const float scale = float(1 / std::sqrt(sum / double(n) + args.eps));
    for (int64_t i = 0; i < n; ++i) args.out(r, i) = args.x(r, i) * scale * args.weight[i];
  }
}

void ReferenceBackend::gate(const GateArgs& args) {
  if (const float limit = args.clamp.limit; limit > 0) {
    for (int64_t r = 0; r < args.gate.extent[0]; ++r)
      for (int64_t i = 0; i < args.gate.extent[1]; ++i) {
        const float g = std::min(args.gate(r, i), limit), u = std::clamp(args.up(r, i), -limit, limit);
        args.out(r, i) = (u + 1) * (g / (1 + std::exp(-args.clamp.alpha * g)));
      }
    return;
  }
  for (int64_t r = 0; r < args.gate.extent[0]; ++r) {
    for (int64_t i = 0; i < args.gate.extent[1]; ++i) {
      const float a = args.gate(r, i);
      const float gated = (args.sigmoid ? 1 : a) / (1 + std::exp(-a)) * args.up(r, i);
      args.out(r, i) = args.accumulate ? args.out(r, i) + gated : gated;
    }
  }
}

}
