// eagle: one decoder layer over the target's last hidden state (EAGLE, EAGLE-2; Li et al., 2024). A row takes its token's
// embedding beside the feature of the position before, and predicts the target's hidden state, which the target's own head reads.
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
  static Proposer::Made make(const Proposer::Setup& setup);

  int64_t scratch_floats() const override { return 3 * shape_.hidden; }

  void fuse(Backend& backend, Arena&, const TargetRows& rows, int64_t first, int64_t count, View<float, 2> out) const override {
    backend.copy_rows({.from = rows.hidden.slice(first, count), .to = out});
  }

  void forward(Pass& pass, View<const float, 2> features, View<float, 2> recycled, View<float, 2> hidden) const override {
    Backend& backend = pass.backend();
    const auto normed = pass.arena().take<float>(pass.num_rows(), shape_.hidden);
    BlockScratch scratch(pass.arena(), shape_, pass.num_rows());
    attend(pass, 0, shape_, attention_, scratch, read(pass, features, scratch, normed, recycled), recycled);
    norm(backend, recycled, ffn_norm_, normed);
    feed_forward(backend, ffn_, scratch, normed, recycled);
    norm(backend, recycled, output_norm_, hidden);
  }
};

Proposer::Made Eagle::make(const Proposer::Setup& setup) {
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
  net->output_norm_ = load.vector("pre_lm_head_layernorm.weight", width, false);
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
