// eagle: one decoder layer over the target's last hidden state (EAGLE, EAGLE-2; Li et al., 2024). A row takes the embedding of
// its token beside the feature of the position before; its output predicts the target's hidden state, which the target's own head
// reads.
//
//   x = fc([embedding | feature]) (+ bias);  x += attention(x);  x += mlp(norm(x));  logits = target head(x);  next feature = x
//
// The layer has no norm in front of attention (vLLM's and speculators' forms may have one, with norms before fc).
#include <fmt/format.h>

#include "draft/drafter_shape.h"
#include "draft/drafter_tensors.h"
#include "draft/follower.h"

namespace hunch {
namespace {

class Eagle final : public OneLayerNet {
 public:
  static Result<std::unique_ptr<Proposer>> make(const Proposer::Setup& setup);

  int64_t scratch_floats() const override { return 3 * shape_.hidden; }

  void fuse(Backend& backend, Arena&, const TargetRows& rows, int64_t first, int64_t count, View<float, 2> out) const override {
    backend.copy_rows({.from = rows.hidden.slice(first, count), .to = out});
  }

  void forward(Pass& pass, View<const float, 2> features, View<float, 2> recycled, View<float, 2> hidden) const override {
    Backend& backend = pass.backend();
    const auto normed = pass.arena().take<float>(pass.num_rows(), shape_.hidden);
    BlockScratch scratch(pass.arena(), shape_, pass.num_rows());
    attend(pass, 0, shape_, attention_, scratch, read(pass, features, scratch, normed, recycled), recycled);
    backend.norm({.x = recycled, .weight = floats(ffn_norm_), .eps = shape_.norm_eps, .out = normed});
    feed_forward(backend, ffn_, scratch, normed, recycled);
    if (head_norm_) backend.norm({.x = recycled, .weight = floats(head_norm_), .eps = shape_.norm_eps, .out = hidden});
    else backend.copy_rows({.from = recycled, .to = hidden});
  }
  void remember(Pass& pass, View<const float, 2> features, View<float, 2> room, View<float, 2> more_room) const override {
    BlockScratch scratch(pass.arena(), shape_, pass.num_rows());
    store_rows(pass, 0, shape_, attention_, scratch, read(pass, features, scratch, more_room, room));
  }

 private:
  // x, and what attention takes of it, which is x or `normed`.
  View<const float, 2> read(
      Pass& pass, View<const float, 2> features, const BlockScratch& scratch, View<float, 2> normed, View<float, 2> x) const {
    Backend& backend = pass.backend();
    const auto [both, left, right] = TokenAndFeature(pass.arena(), pass.num_rows(), shape_.hidden);
    rope_.angles(pass, scratch);
    target_->embed(backend, pass.ids(), normed);
    if (embedding_norm_) backend.norm({.x = normed, .weight = floats(embedding_norm_), .eps = shape_.norm_eps, .out = left});
    else backend.copy_rows({.from = normed, .to = left});
    if (feature_norm_) backend.norm({.x = features, .weight = floats(feature_norm_), .eps = shape_.norm_eps, .out = right});
    else backend.copy_rows({.from = features, .to = right});
    multiply(backend, both, *fuse_, fuse_bias_, x);
    if (!attention_norm_) return x;
    backend.norm({.x = x, .weight = floats(attention_norm_), .eps = shape_.norm_eps, .out = normed});
    return normed;
  }

  Buffer fuse_bias_, attention_norm_, head_norm_;  // these and the norms of what is fused may be empty
};

Result<std::unique_ptr<Proposer>> Eagle::make(const Proposer::Setup& setup) {
  if (!setup.file) return usage_error("method eagle needs a drafter: --model-draft PATH, or \"model\" in --speculative-config");
  auto net = std::make_unique<Eagle>();
  DrafterFile& file = *setup.file;
  const ModelShape& target = setup.target->shape();
  const JsonConfig& config = file.config();
  net->target_ = setup.target;
  HUNCH_TRY(net->shape_, drafter_shape(config, config.has("transformer_layer_config") ? "transformer_layer_config" : "", target));
  const ModelShape& shape = net->shape_;
  if (shape.layers != 1)
    return config.wrong("num_hidden_layers", fmt::format("{} layers; EAGLE drafters of one layer are supported", shape.layers));
  if (shape.hidden != target.hidden)
    return config.wrong("hidden_size",
        fmt::format("{}, but the target's is {}: this drafter was made for another model", shape.hidden, target.hidden));
  if (shape.vocab_size != target.vocab_size)
    return config.wrong("vocab_size",
        fmt::format("{}, but the target's is {}: this drafter was made for another model", shape.vocab_size, target.vocab_size));
  HUNCH_OK(file.strip_prefix("model."));
  DrafterTensors load(*setup.backend, file);
  const int64_t width = shape.hidden;
  const std::string fuse = file.has("fusion_fc.weight") ? "fusion_fc" : "fc", layer = "layers.0.";
  net->fuse_ = load.matrix(fuse + ".weight", width, 2 * width);
  net->fuse_bias_ = load.vector(fuse + ".bias", width, false);
  // HASS and vLLM's add_para_norm: norms of what goes into fc.
  net->embedding_norm_ = load.vector("enorm.weight", width, false),
  net->feature_norm_ = load.vector("hnorm.weight", width, false);
  net->attention_norm_ = load.vector(layer + "input_layernorm.weight", width, false);
  net->ffn_norm_ = load.vector(layer + "post_attention_layernorm.weight", width);
  net->attention_ = load.attention(layer + "self_attn.", shape, width);
  net->ffn_ = load.feed_forward(layer + "mlp.", shape);
  net->head_norm_ = load.vector("pre_lm_head_layernorm.weight", width, false);
  HUNCH_OK(load.status());
  // Copies of the target's, and angles that follow from the configuration.
  for (const char* copy : {"embed_tokens.weight", "lm_head.weight", "layers.0.self_attn.rotary_emb.inv_freq"}) file.ignore(copy);
  HUNCH_OK(file.all_consumed());
  net->bytes_ = load.bytes();
  net->rope_ = RopeTable(*setup.backend, shape);
  return std::unique_ptr<Proposer>(std::make_unique<Follower>(setup, std::move(net)));
}

const Register<Proposer> eagle{"eagle", "a layer over the target's last hidden state (EAGLE, EAGLE-2)", Eagle::make};

}
}
