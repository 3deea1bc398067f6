// MaskCosts: what masks of grammars add to passes on a device, which may be at work while they are waited for, and may not.
#pragma once

#include <algorithm>

namespace hunch {

class MaskCosts {
 public:
  // A pass with `guesses` under grammars took `ms`, `waited` of them in waits for masks, and takes `usual` without masks, as far
  // as is known; what it says of that.
  double record(double ms, double usual, double waited, int guesses) {
    const double longer = std::max(0.0, ms - usual), more = std::max(0.0, longer - plain_ms_);
    double& of = guesses > 0 ? guess_ms_ : plain_ms_;
    of += kNew * ((guesses > 0 ? more / guesses : longer) - of);
    return std::clamp(usual, ms - waited, ms);
  }
  // Milliseconds that a guess adds, beyond its row and what such a pass has longer without guesses.
  double guess_ms() const { return guess_ms_; }

 private:
  static constexpr double kNew = 0.1;
  double plain_ms_ = 0, guess_ms_ = 0;
};

}
