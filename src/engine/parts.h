// EngineParts: what one engine owns, made once at load in this order. Nothing here is made or grown inside a step.
#pragma once

#include <map>
#include <mutex>

#include "backend/backend.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/drafter_file.h"
#include "draft/vocab_map.h"
#include "engine/drafting.h"
#include "engine/mask_workers.h"
#include "engine/scheduler.h"
#include "engine/trace.h"
#include "engine/verify_calibration.h"
#include "hunch/hunch.h"
#include "kv/page_pool.h"
#include "kv/prefix_cache.h"
#include "model/model.h"
#include "model/pass.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace hunch {

struct StrategyProfile;  // engine/strategy_profile.h

class EngineParts {
 public:
  EngineParts();
  ~EngineParts();  // waits for the device: what is queued there reads memory that goes now
  EngineParts(const EngineParts&) = delete;
  EngineParts& operator=(const EngineParts&) = delete;
  static Result<std::unique_ptr<EngineParts>> load(const EngineOptions&);

  EngineOptions options;
  std::unique_ptr<Checkpoint> checkpoint;
  std::optional<Tokenizer> tokenizer;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
  KvGeometry geometry;
  int64_t context_len = 0;
  std::unique_ptr<KvStore> store;
  std::unique_ptr<KvStore> compressed;  // rows of sparse attention, as many pages for every slot; null: the model has none
  std::optional<PagePool> pool;
  std::optional<Pass> pass;
  std::optional<PrefixCache> prefix_cache;
  void forget_prefixes();
  SchedulerLimits limits;
  Drafting& drafting() { return drafting_; }
  // The learned drafters that were loaded. A request names them by their method.
  struct Learned {
    std::string name, path;
    std::unique_ptr<DrafterFile> file;
    std::unique_ptr<Checkpoint> model;  // draft_model: a model like any other
    std::unique_ptr<Proposer> proposer;
    int64_t luckless = 0;  // rounds that it drafted since one of its tokens was kept
  };
  std::vector<Learned> learned;
  Proposer* learned_named(const std::string& name) const {
    for (const Learned& drafter : learned)
      if (drafter.name == name) return drafter.proposer.get();
    return nullptr;
  }
  std::span<Proposer* const> followers() const { return followers_; }
  std::optional<std::vector<int>> reuse_layers;       // that options.reuse_schedule names
  std::unique_ptr<const StrategyProfile> strategies;  // of options.strategies; null: none
  std::vector<int> taps;                              // layers whose outputs some of them read, ascending
  bool follows_last = false;                          // some read what is behind the last layer
  double load_ms = 0;
  std::optional<VerifyCalibration> calibration;  // of sparse verification, where a file was named
  std::unique_ptr<Trace> trace;                  // null: none is wanted

  int64_t page_bytes() const;  // of a page, the target's and all drafters'
  double bits_per_weight(double* weights = nullptr) const;
  // The model's weights in another encoding, for drafts; made at first use and kept.
  Result<const Model*> draft_weights(DType);
  bool has_draft_weights(DType type) const { return draft_weights_.contains(type) && draft_weights_.at(type); }
  // What compiles grammars for this model, made at first use; any thread. Errors: there is no tokenizer, or no end id.
  Result<GrammarCompiler*> grammars();
  // Of a device, made at first use; else null. Any thread.
  MaskWorkers* mask_workers();
  SparsePolicy::Setup policy_setup(const PolicyOptions&, int max_draft, int max_sequences);

 private:
  Status load_drafters();
  Result<VocabMap> open_draft_model(const DrafterOptions&, Learned&) const;
  Status plan_limits();
  Status plan_memory();
  double draft_copy_bytes() const;
  KvGeometry geometry_of(KvGeometry drafter) const {
    drafter.dtype = geometry.dtype;
    return drafter;
  }
  std::map<DType, std::unique_ptr<Model>> draft_weights_;
  std::mutex grammars_mutex_;
  std::unique_ptr<GrammarCompiler> grammars_;
  std::unique_ptr<MaskWorkers> mask_workers_;
  Drafting drafting_{*this};
  std::vector<Proposer*> followers_;
};

}
