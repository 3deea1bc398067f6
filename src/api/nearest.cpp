// Optimal string alignment: swaps of neighbours are the commonest typing error, and plain Levenshtein counts them as two.
#include "api/nearest.h"

#include <algorithm>
#include <vector>

namespace hunch {

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = int(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = int(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::string_view nearest_word(std::string_view word, std::span<const std::string_view> known) {
  word = word.substr(0, 64);  // the cost is a product of lengths, and nobody means a word this long
  std::string_view best;
  int best_distance = std::max(2, int(word.size()) / 3) + 1;  // further away it is another word, not a typing error
  for (std::string_view candidate : known) {
    int distance = edit_distance(word, candidate);
    if (word.size() > 2 && candidate.size() > word.size() && candidate.starts_with(word)) distance = 1;  // left off early
    if (distance < best_distance) best_distance = distance, best = candidate;
  }
  return best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> known) {
  const std::string_view best = nearest_word(word, known);
  return best.empty() ? std::string() : " (did you mean " + std::string(best) + "?)";
}

}
