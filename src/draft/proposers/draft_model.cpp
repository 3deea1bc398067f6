// draft_model: a small language model of its own drafts (speculative decoding; Leviathan et al., 2023; Chen et al., 2023). It
// reads the text's tokens alone, from the first on: row j takes token j and predicts token j + 1.
//
// Its vocabulary may be padded otherwise than the target's, or be another one (draft/vocab_map.h): its logits are then spread
// over the target's ids, where what it cannot say has -infinity, and it reads own ids. Any q over the target's ids keeps every
// rule exact.
#include <fmt/format.h>

#include "draft/follower.h"
#include "draft/vocab_map.h"

namespace hunch {
namespace {

class DraftModel final : public DraftNet {
 public:
  static Proposer::Made make(const Proposer::Setup& setup);

  const ModelShape& shape() const override { return model_->shape(); }
  size_t weight_bytes() const override { return model_->weight_bytes(); }
  bool takes_features() const override { return false; }
  int64_t longest() const override { return shape().context_len; }
  void forward(Pass& pass, View<const float, 2>, View<float, 2>, View<float, 2> hidden) const override {
    model_->forward(pass, hidden);
  }
  void remember(Pass& pass, View<const float, 2>, View<float, 2>, View<float, 2>) const override { model_->forward(pass, {}); }
  void logits(Backend& backend, View<const float, 2> hidden, View<float, 2> logits) const override {
    model_->logits(backend, hidden, logits);
  }
  View<const int32_t, 1> vocabulary() const override {
    return target_ids_ ? target_ids_.view<const int32_t>(shape().vocab_size) : View<const int32_t, 1>{};
  }
  std::span<const int32_t> own_ids() const override { return own_ids_; }
  bool renumbers() const override { return renumbers_; }

 private:
  std::unique_ptr<Model> model_;
  Buffer target_ids_;  // empty, both: the target's numbering
  std::vector<int32_t> own_ids_;
  bool renumbers_ = false;
};

Proposer::Made DraftModel::make(const Proposer::Setup& setup) {
  if (!setup.draft_model)
    return usage_error("method draft_model needs a draft model: --model-draft PATH, or \"model\" in --speculative-config");
  const std::string& name = setup.draft_model->shape().family;
  const auto* family = Register<Model>::find(name);
  if (!family) return Error{fmt::format("draft model: unknown architecture '{}'; known: {}", name, Register<Model>::names())};
  if (setup.draft_model->shape().nsa.used())
    return Error{"draft model: one with natively trained sparse attention cannot draft; use a model of another architecture"};
  auto net = std::make_unique<DraftModel>();
  HUNCH_TRY(net->model_, family->make({.backend = setup.backend, .checkpoint = setup.draft_model}));
  const int64_t columns = net->shape().vocab_size, target_columns = setup.target->shape().vocab_size;
  if (const VocabMap* map = setup.draft_vocab; map && !map->same()) {
    HUNCH_CHECK(std::ssize(map->target_ids) == columns && std::ssize(map->own_ids) == target_columns);
    net->target_ids_ = setup.backend->constant_ids(map->target_ids), net->own_ids_ = map->own_ids;
    for (const int32_t id : map->target_ids) net->renumbers_ |= id >= 0 && map->own_ids[id] != id;
  } else {
    HUNCH_CHECK(columns == target_columns);
  }
  return std::unique_ptr<Proposer>(std::make_unique<Follower>(setup, std::move(net)));
}

const Register<Proposer> draft_model{"draft_model", "a small model of the target's vocabulary", DraftModel::make};

}
}
