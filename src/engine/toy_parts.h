// Toy: engine parts around a model that is a table, for tests of the hot loop's laws. Logits of the token at position t + 1
// depend on t and on the token at t; target and drafter have a table each. All else (step, proposer, rule, sampler, noise,
// commit) is production code. Draft weights of another encoding choose the drafter's table.
#pragma once

#include "base/check.h"
#include "engine/parts.h"
#include "engine/solo.h"

namespace hunch::toy {

// Fills `logits` [vocab] of the token that follows `token` at `position`.
using Table = std::function<void(int64_t position, int32_t token, float* logits)>;

struct Tables {
  int vocab = 5;
  Table target, drafter;
  std::function<void(int64_t position, int32_t token)> on_verify = {};  // rows that read everything, as they run
};

class ToyCheckpoint final : public Checkpoint {
 public:
  ToyCheckpoint(Tables tables, int context_len) : tables(std::move(tables)) {
    shape_.family = "toy";
    shape_.vocab_size = this->tables.vocab, shape_.hidden = 2, shape_.ffn = 1;
    shape_.layers = 1, shape_.heads = 1, shape_.kv_heads = 1, shape_.head_dim = 16;
    shape_.context_len = context_len;
  }
  std::string_view format() const override { return "toy"; }
  size_t file_bytes() const override { return 0; }

  Tables tables;
};

class ToyModel final : public Model {
 public:
  ToyModel(const ToyCheckpoint& checkpoint, bool drafter) : checkpoint_(checkpoint), drafter_(drafter) {}
  const ModelShape& shape() const override { return checkpoint_.shape(); }
  size_t weight_bytes() const override { return 0; }
  void forward(Pass& pass, View<float, 2> hidden, std::span<const uint8_t> = {}) const override {
    for (int64_t row = 0; row < pass.num_rows(); ++row) {
      if (hidden.data) hidden(row, 0) = float(pass.ids()(row)), hidden(row, 1) = float(pass.positions()(row));
      if (!drafter_ && checkpoint_.tables.on_verify) checkpoint_.tables.on_verify(pass.positions()(row), pass.ids()(row));
    }
  }
  void embed(Backend&, View<const int32_t, 1>, View<float, 2>) const override { HUNCH_CHECK(false); }
  void logits(Backend&, View<const float, 2> hidden, View<float, 2> logits) const override {
    const Table& table = drafter_ ? checkpoint_.tables.drafter : checkpoint_.tables.target;
    for (int64_t row = 0; row < hidden.extent[0]; ++row) table(int64_t(hidden(row, 1)), int32_t(hidden(row, 0)), &logits(row, 0));
  }

 private:
  const ToyCheckpoint& checkpoint_;
  bool drafter_;
};

inline const Register<Model> registered{
    "toy", "a table, for tests", [](const Model::Setup& setup) -> Result<std::unique_ptr<Model>> {
      const auto& checkpoint = static_cast<const ToyCheckpoint&>(*setup.checkpoint);
      return std::unique_ptr<Model>(new ToyModel(checkpoint, setup.requantise.has_value()));
    }};

inline std::unique_ptr<EngineParts> make_parts(Tables tables, const char* device, int context_len) {
  auto parts = std::make_unique<EngineParts>();
  auto backend = Register<Backend>::find(device)->make({.threads = 1});
  HUNCH_CHECK(backend.ok());
  parts->backend = std::move(*backend);
  parts->checkpoint = std::make_unique<ToyCheckpoint>(std::move(tables), context_len);
  parts->model = std::make_unique<ToyModel>(static_cast<const ToyCheckpoint&>(*parts->checkpoint), false);
  parts->options.max_draft = 64;
  parts->options.chunk_len = 64;
  parts->options.max_num_seqs = 1;
  parts->limits = {.max_seqs = 1, .rows = 65, .verify_rows = 65, .chunk_len = 64};
  parts->context_len = context_len;
  parts->geometry = {.dtype = DType::F32, .layers = 1, .kv_heads = 1, .head_dim = 16};
  const int64_t pages = (context_len + kPageLen - 1) / kPageLen;
  parts->store = parts->backend->make_kv_store(parts->geometry, pages);
  parts->pool.emplace(pages);
  parts->pass.emplace(*parts->backend, parts->model->shape(), *parts->store, PassLimits{.max_rows = 65});
  return parts;
}

// A request whose drafts come from the drafter's table.
inline Request request(Tokens prompt, int gamma, const char* rule) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling = {.temperature = 1.0, .top_p = 1.0, .min_p = 0.0, .top_k = 0, .seed = 1};
  request.speculation.proposer = "self";
  request.speculation.policy = "full";
  request.speculation.num_tokens = gamma;
  request.speculation.rule = rule;
  request.speculation.draft_weights = "q4_0";
  return request;
}

}
