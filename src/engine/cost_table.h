// CostTable: what a pass costs on this machine, in milliseconds. The planner reads it; the engine feeds it with every real pass.
// A few physical terms (bytes over bandwidth, arithmetic over rate) give the form, corrections on a coarse grid what they miss;
// both are learned live: nothing is measured before the first token. Device-free.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "base/result.h"

namespace hunch {

// What decides the time of a pass. `rows` may be fractional (an expected number of rows).
struct PassShape {
  double rows = 1;     // of all sequences together, at least `sequences`
  int sequences = 1;   // at least 1
  double entries = 0;  // KV entries read, summed over the sequences (each counted once, however many rows read it)
  double widest = 0;   // rows of the sequence that has most, where that is what attention takes (a device); else the mean counts
};

// One kind of pass:  ms = speed · correction · (fixed + sequences · sequence + either(weights, rows · weight_row)
//                                             + either(entries · entry, widest · entries · entry_row))
// where either() is a soft maximum: reading and computing overlap.
class PassModel {
 public:
  struct Terms {  // milliseconds
    double fixed = 0.02, sequence = 0.005, weights = 1, weight_row = 0.1, entry = 1e-4, entry_row = 2e-5;
  };
  explicit PassModel(const Terms& prior);

  double ms(const PassShape& shape) const { return std::exp(parts(shape).log_ms); }
  // A pass of this shape took so long. Cheap, allocates nothing. Outliers move it by a bounded step; only positive finite times
  // count.
  void record(const PassShape&, double ms);
  // Passes of about this shape (half to twice of everything) were seen, here or in the file that was read.
  bool known(const PassShape&) const;
  int64_t recorded() const { return recorded_; }

  nlohmann::json to_json() const;
  // Errors: not what to_json() makes. The model is unchanged then.
  Status from_json(const nlohmann::json&);

 private:
  static constexpr int kTerms = 7;  // of Terms, and the speed of everything
  static constexpr int kRowNodes = 7, kEntryNodes = 9, kSequenceNodes = 7, kNodes = kRowNodes * kEntryNodes * kSequenceNodes;
  struct Estimate {  // of a logarithm
    double mean = 0, variance = 0;
  };
  struct Corner {
    int node = 0;
    double weight = 0;
  };
  struct Parts {
    double log_ms = 0;
    std::array<double, kTerms> shares{};  // d log(ms) / d log(term)
    std::array<Corner, 8> corners{};
  };
  Parts parts(const PassShape&) const;
  void take_powers() {
    for (size_t i = 0; i < kTerms; ++i) values_[i] = std::exp(terms_[i].mean);
  }

  std::array<Estimate, kTerms> terms_;
  std::array<double, kTerms> values_;  // exp(mean) of terms_
  std::array<Estimate, kNodes> nodes_;
  int64_t recorded_ = 0;
};

// What a network's chain takes before its first step, in steps, as what became final goes first: a regression of times over
// steps, in which old ones fade.
class ChainStart {
 public:
  double steps() const;                    // at least 0
  void record(double steps, double took);  // both in steps
  nlohmann::json to_json() const;
  Status from_json(const nlohmann::json&);  // errors: as PassModel's

 private:
  std::array<double, 5> sums_{};  // of weights; times steps, steps squared, time, time and steps
};

// What is known before anything was measured.
struct CostPriors {
  double weight_bytes = 35e6, kv_bytes_per_token = 8192;
  double bytes_per_second = 40e9;
  int device_layers = 0;  // of the model where a pass is kernels of a device, with much arithmetic to a byte; 0: a CPU
  struct Draft {
    std::string name;  // "q4_0@0.03": tells a saved table's models apart
    double weight_bytes = 19e6;
    double kv_bytes_per_token = 0;  // 0: as the target
    int layers = 0;                 // 0: as the target
  };
  std::vector<Draft> drafts;  // the kinds of draft pass
};

// Times are only comparable where all of this agrees.
struct CostKey {
  std::string machine;  // processor and instruction set
  int threads = 0;
  std::string build, model, kv_type;
  int64_t model_bytes = 0;
  std::string text() const;
};
// The key of this machine's processor: the model name that the system states, or "unknown".
std::string processor_name();

class CostTable {
 public:
  explicit CostTable(const CostPriors& = {});

  // A pass of the target: one row a sequence is plain decoding, more are verify.
  PassModel verify;
  // By kind of draft (index of CostPriors::drafts): a draft step (one row a sequence, `entries` of the selections), and what
  // learning a selection adds to a verify pass (scores, choosing, copying; `entries` of the whole contexts).
  struct Draft {
    std::string name;
    PassModel step, learn;
    ChainStart start{};

    // A chain of a network of its own, of so many steps, took so long.
    void record_chain(const PassShape&, double steps, double ms);
  };
  std::vector<Draft> drafts;

  std::string to_json(const CostKey&) const;
  // Errors: damaged, of another key, of another version. The table is unchanged then. Draft kinds are matched by name.
  Status from_json(std::string_view text, const CostKey&);

  // The same with a file. A missing file is success: `found` is false.
  Status load(const std::string& path, const CostKey&, bool* found = nullptr);
  Status save(const std::string& path, const CostKey&) const;  // written beside it first, then renamed
};

// "$XDG_CACHE_HOME/hunch/KIND-HASH.json", or under ~/.cache; empty where neither is set. KIND: "costs", "profile".
std::string cache_path(std::string_view kind, const CostKey&);
// Whole file or nothing: a temporary beside it, then rename. Makes the folder.
Status write_atomically(const std::string& path, std::string_view text);
// Errors: unreadable, or above 16 MiB. A missing file: success, `found` false.
Status read_cache_file(const std::string& path, std::string& text, bool& found);

}
