// Profile: what `hunch tune` found for one model on one machine with a sample of the user's prompts. Stored beside the table of
// costs; a planner takes it as a prior. Device-free.
#pragma once

#include <string_view>

#include "engine/cost_table.h"
#include "engine/planner.h"

namespace hunch {

struct Profile {
  double ratio = 0;  // kept ratio of self drafts
  int gamma = 0;     // the best fixed length; a planner chooses around it by itself
  struct Seen {
    int64_t context_len = 0;  // of a lookup: quality of the match
    double rounds = 0;
    std::vector<double> acceptance;  // by position, given that all before were accepted
  };
  std::vector<Seen> seen;  // of self drafts at this ratio, or of the arm that it was taken of

  std::string to_json(const CostKey&) const;
  // Errors: damaged, or of another machine, build or model.
  static Result<Profile> from_json(std::string_view text, const CostKey&);
  // Errors as above, naming the file. A missing file: success, `found` false.
  static Status load(const std::string& path, const CostKey&, Profile& out, bool& found);
  Status save(const std::string& path, const CostKey& key) const { return write_atomically(path, to_json(key)); }

  // Makes it the prior of this arm.
  void apply(Planner&, int arm) const;
  // What this arm has seen, to be the prior of another planner's.
  static Profile of(const Planner&, int arm);
};

}
