#include "model/rope_frequencies.h"

#include <cmath>
#include <numbers>

namespace hunch {
namespace {

using Kind = RopeScaling::Kind;

// Long wavelengths are divided by the factor, short ones kept, those between blended linearly in 1 / wavelength.
double llama3_scaled(double freq, const RopeScaling& s) {
  const double wavelength = 2 * std::numbers::pi / freq;
  const double long_wave = s.original_context / s.low_freq_factor, short_wave = s.original_context / s.high_freq_factor;
  if (wavelength < short_wave) return freq;
  if (wavelength > long_wave) return freq / s.factor;
  const double smooth = (s.original_context / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - smooth) * freq / s.factor + smooth * freq;
}

// The (fractional) dimension pair that turns `rotations` times within the original context.
double yarn_dimension(double rotations, int dim, double theta, double original_context) {
  return dim * std::log(original_context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

}

RopeFrequencies rope_frequencies(const ModelShape& shape) {
  const RopeScaling& s = shape.rope_scaling;
  const int dim = shape.rope_dim > 0 ? shape.rope_dim : shape.head_dim;
  RopeFrequencies out;
  out.inv_freq.resize(dim / 2);
  double low = 0, high = 1;
  if (s.kind == Kind::Yarn) {
    low = yarn_dimension(s.beta_fast, dim, shape.rope_theta, s.original_context);
    high = yarn_dimension(s.beta_slow, dim, shape.rope_theta, s.original_context);
    if (s.truncate) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0), high = std::min(high, double(dim - 1));
    if (low == high) high += 0.001;  // the published guard against a ramp without width
    out.magnitude = float(s.attention_factor > 0 ? s.attention_factor : s.factor > 1 ? 0.1 * std::log(s.factor) + 1 : 1.0);
  }
  for (int i = 0; i < dim / 2; ++i) {
    double freq = 1 / std::pow(shape.rope_theta, 2.0 * i / dim);
    switch (s.kind) {
      case Kind::None: break;
      case Kind::Linear: freq /= s.factor; break;
      case Kind::Llama3: freq = llama3_scaled(freq, s); break;
      case Kind::Yarn: {
        const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);  // 0: keep, 1: interpolate
        freq = freq / s.factor * ramp + freq * (1 - ramp);
        break;
      }
    }
    if (!shape.rope_factors.empty()) freq /= shape.rope_factors[i];
    out.inv_freq[i] = float(freq);
  }
  return out;
}

}
