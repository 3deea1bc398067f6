// MaskCosts: what masks of grammars add to passes of a device, which may be at work while they are waited for.
#pragma once

#include <algorithm>

namespace hunch {

class MaskCosts {
 public:
  // Of a pass with `guesses` under grammars, `drawn` or greedy alone, `waited` of its `ms` for masks: what it says of the `usual`
  // time without them. Greedy ones seldom need any.
  double record(double ms, double usual, double waited, int guesses, bool drawn) {
    const double longer = std::max(0.0, ms - usual), more = std::max(0.0, longer - plain_ms_);
    double& of = guesses > 0 ? guess_ms_[drawn] : plain_ms_;
    of += kNew * ((guesses > 0 ? more / guesses : longer) - of);
    return std::clamp(usual, ms - waited, ms);
  }
  // Milliseconds that a guess adds beyond its row.
  double guess_ms(bool drawn) const { return guess_ms_[drawn]; }

 private:
  static constexpr double kNew = 0.1;
  double plain_ms_ = 0, guess_ms_[2] = {};
};

}
