// For tests of the planner: decisions for a full batch.
#pragma once

#include <vector>

#include "engine/planner.h"

namespace hunch::test {

// Of requests in slots 0 to count - 1, each as view_of(slot) says.
template <class ViewOf>
std::vector<Decision> decide_batch(Planner& planner, int count, int budget, ViewOf view_of) {
  std::vector<RequestView> views;
  for (int slot = 0; slot < count; ++slot) views.push_back(view_of(slot));
  std::vector<Decision> decisions(views.size());
  planner.decide(views, decisions, budget);
  return decisions;
}

}
