// EngineParts: what one engine owns, made once at load in this order. Nothing here is made or grown inside a step.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "checkpoint/checkpoint.h"
#include "hunch/hunch.h"
#include "kv/page_pool.h"
#include "kv/page_table.h"
#include "model/model.h"
#include "model/pass.h"
#include "text/tokenizer.h"

namespace hunch {

class EngineParts {
 public:
  static Result<std::unique_ptr<EngineParts>> load(const EngineOptions&);

  EngineOptions options;
  std::unique_ptr<Checkpoint> checkpoint;
  std::optional<Tokenizer> tokenizer;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
  KvGeometry geometry;
  int64_t context_len = 0;
  std::unique_ptr<KvStore> store;
  std::optional<PagePool> pool;
  std::optional<Pass> pass;
  // The entries of the last request that asked for reuse: tokens[i] stands at entry i, all of them verified.
  struct Kept {
    std::vector<int32_t> tokens;
    PageTable pages;
  } kept;
  void forget_kept();
  double load_ms = 0;

  double bits_per_weight() const;
  // The model's weights in another encoding, for drafts; made at first use and kept.
  Result<const Model*> draft_weights(DType);
  SparsePolicy::Setup policy_setup(const PolicyOptions&, int max_draft);

 private:
  Status plan_memory();
  std::map<DType, std::unique_ptr<Model>> draft_weights_;
};

}  // namespace hunch
