// Confidence: how often the target shares a drafter's choice, by how clearly it led (ops/sample.h, leads). Learned from what was
// kept, over all requests of a proposer; forgets slowly. No output depends on it.
#pragma once

#include <algorithm>
#include <cmath>

#include "tensor/view.h"

namespace hunch {

class Confidence {
 public:
  static constexpr int kSecond = 8, kClasses = 9;  // 0..7 by lead; a token that came second

  // Leads in units of log-probability, twice as far a class: below 1/8, 1/4, ... 8, and beyond (or the only possible token).
  static int class_of(float lead) {
    if (!(lead < 8)) return 7;
    return std::clamp(int(std::ceil(std::log2(std::max(lead, 1e-6f) * 8))), 0, 6);
  }
  // The same of a distribution, before anything is drawn from it: the log-odds of its likeliest token are about its lead to come.
  // This a drafter of law Given may ask about a sibling (draft_tree.h), not the lead.
  static int class_of_law(View<const float, 1> q) {
    float most = 0;
    for (int64_t token = 0; token < q.extent[0]; ++token) most = std::max(most, q(token));
    return class_of(most < 1 ? std::log(most / (1 - most)) : INFINITY);
  }
  float kept(int of) const { return float(kept_[of] / tried_[of]); }
  float usual() const {  // of all but second tokens
    double tried = 0, kept = 0;
    for (int of = 0; of < kSecond; ++of) tried += tried_[of], kept += kept_[of];
    return float(kept / tried);
  }
  void record(int of, bool kept) {
    double& tried = tried_[of];
    if (tried > kMemory) tried *= 0.5, kept_[of] *= 0.5;
    tried += 1;
    kept_[of] += kept;
  }

 private:
  static constexpr double kMemory = 2000;
  // A few made-up trials each, so that the first rounds draft on.
  std::array<double, kClasses> tried_{4, 4, 4, 4, 8, 8, 16, 32, 4};
  std::array<double, kClasses> kept_{2, 2.2, 2.6, 3, 7, 7.4, 15.4, 31.6, 1};
};

}
