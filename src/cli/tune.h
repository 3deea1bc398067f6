// hunch tune: its parts. tune.cpp: drafts over a selection, and the command; tune_nsa.cpp: what models with natively trained
// sparse attention may do less exactly.
#pragma once

#include "cli/request_flags.h"

namespace hunch {

struct TuneFlags {
  ModelFlags model;
  SpeculationFlags speculation;
  SamplingFlags sampling;
  std::optional<std::string> file, out;
  int64_t most = 4, scored = 256;
  double budget = 0.005;
  bool json = false, reuse = false, profile = false;
  std::optional<std::string> calibration;
  std::optional<int64_t> anchors, rows;
};

// The "text" of a JSON object a line, `most` of them; a file that is nothing of the kind is one text.
Result<std::vector<Tokens>> sample_texts(Engine&, const std::string& path, int64_t most);

// --reuse-layers and --profile: measure, write the file, print. Exit codes.
Result<int> tune_reuse_layers(Engine&, const TuneFlags&, ProgressLine&);
Result<int> tune_strategies(Engine&, const TuneFlags&, const SpeculationOptions&, ProgressLine&);

}
