// eagle3: one decoder layer over three of the target's hidden states (EAGLE-3; Li et al., 2025). A row takes its token's
// embedding and the feature of the position before: fc of the three states where the target has read it, else the layer's own
// output. Layouts: SafeAILab and SpecForge ("midlayer."), vLLM and speculators ("layers.0.").
//
//   a = norm(embedding), b = norm(feature);  y = feature + attention([a | b]) (or b +, norm_before_residual);  y += mlp(norm(y))
//   logits over the draft vocabulary = lm_head(norm(y));  the next row's feature = y
#include <fmt/format.h>

#include "draft/drafter_shape.h"
#include "draft/drafter_tensors.h"
#include "draft/follower.h"

namespace hunch {
namespace {

class Eagle3 final : public OneLayerNet {
 public:
  static Proposer::Made make(const Proposer::Setup& setup);

  std::vector<int> taps() const override { return taps_; }
  int64_t scratch_floats() const override { return 3 * shape_.hidden + std::ssize(taps_) * target_->shape().hidden; }
  View<const int32_t, 1> vocabulary() const override {
    return vocabulary_ ? vocabulary_.view<const int32_t>(shape_.vocab_size) : View<const int32_t, 1>{};
  }

  void fuse(
      Backend& backend, Arena& scratch, const TargetRows& rows, int64_t first, int64_t count, View<float, 2> out) const override {
    const auto as_they_lie = rows.side_by_side(taps_);
    if (as_they_lie.data && !fuse_norms_[0]) return multiply(backend, as_they_lie.slice(first, count), *fuse_, fuse_bias_, out);
    const int64_t hidden = target_->shape().hidden;
    const auto joined = scratch.take<float>(count, std::ssize(taps_) * hidden);
    for (size_t i = 0; i < taps_.size(); ++i) {
      View<float, 2> part(joined.data + int64_t(i) * hidden, count, hidden);
      part.stride[0] = joined.stride[0];
      const auto from = rows.layer(taps_[i]).slice(first, count);
      norm(backend, from, fuse_norms_[i], part);
    }
    multiply(backend, joined, *fuse_, fuse_bias_, out);
  }

  void forward(Pass& pass, View<const float, 2> features, View<float, 2> recycled, View<float, 2> hidden) const override {
    Backend& backend = pass.backend();
    Rows rows = read(pass, features);
    const auto normed = rows.embedded, x = recycled;
    const View<const float, 2> residual = norm_before_residual_ ? rows.right : features;
    if (residual.data != x.data) backend.copy_rows({.from = residual, .to = x});
    attend(pass, 0, shape_, attention_, rows.scratch, rows.both, x);
    norm(backend, x, ffn_norm_, normed);
    feed_forward(backend, ffn_, rows.scratch, normed, x);
    norm(backend, x, output_norm_, hidden);
  }
  void remember(Pass& pass, View<const float, 2> features, View<float, 2>, View<float, 2>) const override {
    Rows rows = read(pass, features);
    store_rows(pass, 0, shape_, attention_, rows.scratch, rows.both);
  }

  void logits(Backend& backend, View<const float, 2> hidden, View<float, 2> logits) const override {
    if (head_) multiply(backend, hidden, *head_, {}, logits);
    else OneLayerNet::logits(backend, hidden, logits);
  }

 private:
  struct Rows : TokenAndFeature {  // each behind its own norm
    View<float, 2> embedded;
    BlockScratch scratch;
  };
  Rows read(Pass& pass, View<const float, 2> features) const {
    Backend& backend = pass.backend();
    Arena& arena = pass.arena();
    const int64_t count = pass.num_rows(), width = shape_.hidden;
    const auto embedded = arena.take<float>(count, width);
    Rows rows{{arena, count, width}, embedded, BlockScratch(arena, shape_, count)};
    rope_.angles(pass, rows.scratch);
    if (embedding_) backend.embed({.ids = pass.ids(), .table = embedding_.get(), .out = embedded});
    else target_->embed(backend, pass.ids(), embedded);
    norm(backend, embedded, embedding_norm_, rows.left);
    norm(backend, features, feature_norm_, rows.right);
    return rows;
  }
  Status read_config(const Proposer::Setup& setup);
  Status read_tensors(const Proposer::Setup& setup);
  Status read_vocabulary(const Proposer::Setup& setup);

  std::vector<int> taps_;
  bool norm_before_residual_ = false;
  std::unique_ptr<Weight> embedding_, head_;  // null: the target's
  std::array<Buffer, 3> fuse_norms_;
  Buffer vocabulary_;
};

// Which hidden states. One number names two things: SafeAILab, SpecForge and SGLang count outputs of layers (inside
// eagle_config), vLLM and speculators inputs. Here they are outputs.
Status Eagle3::read_config(const Proposer::Setup& setup) {
  const JsonConfig& config = setup.file->config();
  const ModelShape& target = target_->shape();
  const std::string inside = config.has("transformer_layer_config") ? "transformer_layer_config" : "";
  HUNCH_TRY(shape_, drafter_shape(config, inside, target));
  if (shape_.layers != 1)
    return config.wrong(
        "num_hidden_layers", fmt::format("{} layers; EAGLE-3 drafters of one layer are supported", shape_.layers));
  HUNCH_TRY(const auto target_hidden, config.integer("target_hidden_size"));
  if (target_hidden && *target_hidden != target.hidden)
    return config.wrong("target_hidden_size",
        fmt::format(
            "{}, but the target's hidden size is {}: this drafter was made for another model", *target_hidden, target.hidden));
  HUNCH_TRY(const auto draft_vocab, config.integer("draft_vocab_size", 1, target.vocab_size));
  shape_.vocab_size = draft_vocab.value_or(target.vocab_size);
  HUNCH_TRY(const auto before, config.boolean("norm_before_residual"));
  norm_before_residual_ = before.value_or(config.has("speculators_model_type"));

  HUNCH_TRY(const auto outputs, config.integers("eagle_config.eagle_aux_hidden_state_layer_ids"));
  HUNCH_TRY(const auto inputs, config.integers("eagle_aux_hidden_state_layer_ids"));
  const int64_t layers = target.layers;
  std::vector<int64_t> ids{1, layers / 2 - 1, layers - 4};
  if (outputs) ids = *outputs;
  else if (inputs) {
    ids = *inputs;
    for (int64_t& id : ids) --id;
  }
  if (ids.size() != 3)
    return config.wrong("eagle_aux_hidden_state_layer_ids", fmt::format("{} layers; there must be 3", ids.size()));
  for (const int64_t id : ids) {
    if (id < 0 || id >= layers)
      return config.wrong("eagle_aux_hidden_state_layer_ids",
          fmt::format("the output of layer {} is asked for; the target has layers 0 to {}", id, layers - 1));
    taps_.push_back(int(id));
  }
  return {};
}

Status Eagle3::read_tensors(const Proposer::Setup& setup) {
  DrafterFile& file = *setup.file;
  HUNCH_OK(file.strip_prefix("model."));
  const ModelShape& s = shape_;
  const int64_t width = s.hidden, from = target_->shape().hidden * std::ssize(taps_);
  const std::string layer = file.has("midlayer.self_attn.q_proj.weight") ? "midlayer." : "layers.0.";
  DrafterTensors load(*setup.backend, file);
  embedding_ = load.matrix("embed_tokens.weight", target_->shape().vocab_size, width, false);
  const size_t table = load.bytes();  // a pass reads a row of it per token
  fuse_ = load.matrix("fc.weight", width, from);
  fuse_bias_ = load.vector("fc.bias", width, false);
  for (size_t i = 0; i < fuse_norms_.size(); ++i)
    fuse_norms_[i] = load.vector(fmt::format("fc_norm.{}.weight", i), target_->shape().hidden, false);
  embedding_norm_ = load.vector(layer + "input_layernorm.weight", width);
  feature_norm_ = load.vector(layer + "hidden_norm.weight", width);
  ffn_norm_ = load.vector(layer + "post_attention_layernorm.weight", width);
  attention_ = load.attention(layer + "self_attn.", s, 2 * width);
  ffn_ = load.feed_forward(layer + "mlp.", s);
  output_norm_ = load.vector("norm.weight", width);
  head_ = load.matrix("lm_head.weight", s.vocab_size, width, s.vocab_size != target_->shape().vocab_size);
  HUNCH_OK(load.status());
  bytes_ = load.bytes() - table;
  if (!embedding_ && width != target_->shape().hidden)
    return file.wrong("embed_tokens.weight",
        fmt::format(
            "missing, and the target's embedding has width {} where the drafter's is {}", target_->shape().hidden, width));
  if (!head_ && width != target_->shape().hidden)
    return file.wrong(
        "lm_head.weight", fmt::format("missing, and the target's head takes width {}, not {}", target_->shape().hidden, width));
  HUNCH_OK(read_vocabulary(setup));
  return file.all_consumed();
}

// d2t holds differences: target id = draft id + d2t[draft id], ascending.
Status Eagle3::read_vocabulary(const Proposer::Setup& setup) {
  DrafterFile& file = *setup.file;
  const int64_t vocab = target_->shape().vocab_size;
  file.ignore("t2d");
  if (!file.has("d2t")) {
    if (shape_.vocab_size == vocab) return {};
    return file.wrong("d2t",
        fmt::format("missing: a draft vocabulary of {} tokens needs its map into the target's {}", shape_.vocab_size, vocab));
  }
  HUNCH_TRY(const std::vector<int64_t> differences, file.integers("d2t"));
  if (std::ssize(differences) != shape_.vocab_size)
    return file.wrong("d2t", fmt::format("{} entries for a draft vocabulary of {}", differences.size(), shape_.vocab_size));
  std::vector<int32_t> ids(differences.size());
  int64_t before = -1;
  for (int64_t id = 0; id < shape_.vocab_size; ++id) {
    const int64_t mapped = id + differences[id];
    if (mapped <= before || mapped >= vocab)
      return file.wrong("d2t", fmt::format("draft token {} becomes {}: ids must ascend and lie below {}", id, mapped, vocab));
    ids[id] = int32_t(before = mapped);
  }
  if (before != shape_.vocab_size - 1 || shape_.vocab_size != vocab) vocabulary_ = setup.backend->constant_ids(ids);
  return {};
}

Proposer::Made Eagle3::make(const Proposer::Setup& setup) {
  if (!setup.file) return usage_error("method eagle3 needs a drafter: --model-draft PATH, or \"model\" in --speculative-config");
  auto net = std::make_unique<Eagle3>();
  net->target_ = setup.target;
  HUNCH_OK(net->read_config(setup));
  HUNCH_OK(net->read_tensors(setup));
  net->rope_ = RopeTable(*setup.backend, net->shape_);
  return std::unique_ptr<Proposer>(std::make_unique<Follower>(setup, std::move(net)));
}

const Register<Proposer> eagle3{"eagle3", "a layer over three hidden states of the target (EAGLE-3)", Eagle3::make};

}
}
