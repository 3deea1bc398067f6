// What the parts of hunch bench share. bench.cpp: llama-bench's tests; bench_rounds.cpp: rounds, and kernels; `bench passes`:
// bench_sections.cpp (flags, tables), bench_passes.cpp (passes), bench_requests.cpp (whole requests and processes).
#pragma once

#include "checkpoint/checkpoint.h"
#include "cli/bench_rows.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/request_flags.h"

namespace hunch {

struct RequestPlan;
constexpr int64_t kSlack = 80;  // entries behind the last token that a round of drafts may touch

struct BenchFlags {  // of bench passes
  ModelFlags model;
  SpeculationFlags speculation;
  std::vector<int64_t> depths{0, 4096, 16384, 28672}, rows{2, 4, 8, 12}, trees, gammas{1, 3, 5, 7, 10, 15},
      contexts{16384, 28672};
  std::vector<std::string> only;  // sections; empty: all
  int64_t repeats = 9, new_tokens = 96;
  bool json = false;
};

// What a section measured: rows of numbers under names; printed as a table, or kept as JSON.
struct BenchTable {
  std::string name, title;  // "plain", "Plain decoding"
  std::vector<nlohmann::ordered_json> rows;
  std::string note;
};
std::string table_text(const BenchTable& table);

// What a measurement of an engine works with.
template <class Flags>
class Measurement {
 public:
  Measurement(Engine& engine, const Flags& flags, const SpeculationOptions& speculation, ProgressLine& progress)
      : engine_(engine), flags_(flags), speculation_(speculation), progress_(progress) {}

 protected:
  Engine& engine_;
  const Flags& flags_;
  const SpeculationOptions& speculation_;
  ProgressLine& progress_;
  InterruptScope interrupts_;
};

// Sections. `ceiling`: bytes/s that reading memory reaches; 0: not measured.
Result<BenchTable> bench_plain(Engine& engine, const BenchFlags& flags, double ceiling);
Result<BenchTable> bench_verify(Engine& engine, const BenchFlags& flags, const SpeculationOptions& speculation);
Result<BenchTable> bench_draft(Engine& engine, const BenchFlags& flags, const SpeculationOptions& speculation);
Result<BenchTable> bench_end_to_end(Engine& engine, const BenchFlags& flags, const SpeculationOptions& speculation,
    const InterruptScope& interrupts, ProgressLine& progress);
// Processes of this program, from their start to their first byte of text.
Result<BenchTable> bench_start(const std::string& model, int threads);

// A request of method self with so many guesses a round, sampled at temperature 0.8.
Result<RequestPlan> plan_for(Engine& engine, SpeculationOptions speculation, int gamma);

// Policies by the names of the reference study (docs/flags.md). "default": this engine's own defaults.
Result<SpeculationOptions> named_policy(const std::string& name);
// Such names by comma, each checked.
Status parse_policies(std::string_view text, std::vector<std::string>& out);
// What a name without a ratio keeps: the study's 7 %, or what `--spec self` means.
double named_ratio(const std::string& name);

// What "plain" means in a comparison: an absent choice would be the engine's own.
SpeculationOptions plain_decoding();
// What was asked for on the command line; plain decoding where nothing was.
Result<SpeculationOptions> asked_speculation(const SpeculationFlags& flags);

// Adds one run's counts and times to `sums`, and what kind of run it was.
void add_counts(const Generation& g, Generation& sums);
// {"draft", "verify", "select", "decode"} in milliseconds.
nlohmann::ordered_json time_split(const Generation& g);

// Multiplications and additions of a prompt's prefill that nothing saves: every matrix for every token, the head for the last
// one, and attention over the entries that each token may read.
struct PrefillWork {
  double products = 0, attention = 0;
};
PrefillWork prefill_work(const Checkpoint&, int64_t length);

// --random NAME, --random-type: a known shape with random weights in place of a model.
void add_random_flags(FlagSet& set, ModelFlags& flags);
// -o md|json.
void add_format_flag(FlagSet& set, bool& json);

CommandFunction bench_accept_command, bench_breakeven_command, bench_batch_command, bench_rounds_command, bench_kernels_command,
    bench_prefill_command, bench_passes_command, bench_ssv_command;

}
