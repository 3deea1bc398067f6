// mtp: the multi-token prediction module in some models' own checkpoint (DeepSeek-V3, section 2.2; Qwen3-Next): a whole decoder
// layer (with latent attention where the target has it) over a token's embedding beside the target's last hidden state of the
// position before.
//
//   x = fc([norm(embedding) | norm(feature)]);  x += attention(norm(x));  x += mlp(norm(x));  y = norm(x);  logits = head(y)
//
// "post": the target's state comes from behind its last norm (feed_norm), the next row gets y and not x (recycle_norm).
#include <fmt/format.h>

#include "draft/drafter_shape.h"
#include "draft/drafter_tensors.h"
#include "draft/follower.h"

namespace hunch {
namespace {

// Names of the two published forms.
struct Names {
  const char *fuse, *embedding_norm, *feature_norm, *layer, *output_norm;
};
constexpr Names kDeepSeek{"eh_proj.weight", "enorm.weight", "hnorm.weight", "", "shared_head.norm.weight"};
constexpr Names kQwen{"fc.weight", "pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight", "layers.0.", "norm.weight"};

class Mtp final : public OneLayerNet {
 public:
  static Proposer::Made make(const Proposer::Setup& setup);

  std::vector<int> taps() const override {
    return feed_post_ ? std::vector<int>{} : std::vector<int>{target_->shape().layers - 1};
  }
  int64_t scratch_floats() const override { return 4 * shape_.hidden; }

  void fuse(Backend& backend, Arena&, const TargetRows& rows, int64_t first, int64_t count, View<float, 2> out) const override {
    const auto from = feed_post_ ? rows.hidden : rows.layer(target_->shape().layers - 1);
    backend.copy_rows({.from = from.slice(first, count), .to = out});
  }

  void forward(Pass& pass, View<const float, 2> features, View<float, 2> recycled, View<float, 2> hidden) const override {
    Backend& backend = pass.backend();
    const int64_t rows = pass.num_rows();
    const auto x = pass.arena().take<float>(rows, shape_.hidden), normed = pass.arena().take<float>(rows, shape_.hidden);
    BlockScratch scratch(pass.arena(), shape_, rows);
    attend(pass, 0, shape_, attention_, scratch, read(pass, features, scratch, normed, x), x);
    norm(backend, x, ffn_norm_, normed);
    feed_forward(backend, ffn_, scratch, normed, x);
    norm(backend, x, output_norm_, hidden);
    backend.copy_rows({.from = recycle_post_ ? View<const float, 2>(hidden) : x, .to = recycled});
  }

 private:
  Status read_drafter(const Proposer::Setup& setup);
  Status read_latent(const Proposer::Setup& setup);

  bool feed_post_ = true, recycle_post_ = true;
};

// DeepSeek's own layout: a layer like the target's, behind its last, in the same checkpoint.
Status Mtp::read_latent(const Proposer::Setup& setup) {
  if (setup.file)
    return usage_error(fmt::format(
        "{}: models with latent attention take the prediction module from their own checkpoint: name none", setup.file->path()));
  shape_ = target_->shape();
  const int layer = shape_.layers;
  shape_.layers = 1;
  WeightLoader load(*setup.backend, [&](const std::string& name) { return setup.checkpoint->find(name); });
  const auto name = [layer](const char* part) { return fmt::format("blk.{}.{}.weight", layer, part); };
  fuse_ = load.matrix(name("nextn.eh_proj"));
  if (!fuse_)
    return usage_error(
        "method mtp: this model's checkpoint holds no prediction module (num_nextn_predict_layers, and a layer behind the last): "
        "models with latent attention take it from nowhere else");
  embedding_norm_ = load.vector(name("nextn.enorm")), feature_norm_ = load.vector(name("nextn.hnorm"));
  output_norm_ = load.vector(name("nextn.shared_head_norm"));
  attention_norm_ = load.vector(name("attn_norm")), ffn_norm_ = load.vector(name("ffn_norm"));
  attention_.latent = load_latent(load, target_->shape(), layer);
  attention_.o = load.matrix(name("attn_output"));
  ffn_ = load_feed_forward(load, target_->shape(), layer);
  bytes_ = load.bytes() - ffn_.idle_bytes();
  return load.status();
}

Status Mtp::read_drafter(const Proposer::Setup& setup) {
  if (target_->shape().latent.used()) return read_latent(setup);
  DrafterFile& file = *setup.file;
  const ModelShape& target = target_->shape();
  HUNCH_TRY(shape_, drafter_shape(file.config(), "", target));
  shape_.layers = 1;
  if (shape_.hidden != target.hidden)
    return file.config().wrong("hidden_size",
        fmt::format("{}, but the target's is {}: this module was made for another model", shape_.hidden, target.hidden));
  // Inside a target's checkpoint, or alone.
  const auto deep = fmt::format("model.layers.{}.", target.layers);
  const bool qwen = file.has("mtp.fc.weight") || file.has("fc.weight");
  if (file.has("mtp.fc.weight")) HUNCH_OK(file.keep_only("mtp."));
  else if (file.has(deep + "eh_proj.weight")) HUNCH_OK(file.keep_only(deep));
  const Names& names = qwen ? kQwen : kDeepSeek;
  const std::string layer = names.layer;
  DrafterTensors load(*setup.backend, file);
  const int64_t width = shape_.hidden, queries = int64_t(shape_.heads) * shape_.head_dim;
  fuse_ = load.matrix(names.fuse, width, 2 * width);
  embedding_norm_ = load.vector(names.embedding_norm, width), feature_norm_ = load.vector(names.feature_norm, width);
  attention_norm_ = load.vector(layer + "input_layernorm.weight", width);
  ffn_norm_ = load.vector(layer + "post_attention_layernorm.weight", width);
  output_norm_ = load.vector(names.output_norm, width);
  const std::string query = layer + "self_attn.q_proj.weight";
  // Gated attention: each head's rows of q stand before those of its gate.
  if (const Tensor* tensor = file.find(query); tensor && tensor->shape.front() == 2 * queries) {
    attention_ = load.attention(layer + "self_attn.", shape_, width, false);
    attention_.q = load.half(query, queries, width, shape_.head_dim, false);
    attention_.gate = load.half(query, queries, width, shape_.head_dim, true);
  } else {
    attention_ = load.attention(layer + "self_attn.", shape_, width);
  }
  ffn_ = load.feed_forward(layer + "mlp.", shape_);
  HUNCH_OK(load.status());
  for (const char* copy : {"embed_tokens.weight", "shared_head.head.weight"}) file.ignore(copy);  // of the target's
  bytes_ = load.bytes();
  return file.all_consumed();
}

Proposer::Made Mtp::make(const Proposer::Setup& setup) {
  if (!setup.file && !setup.target->shape().latent.used())
    return usage_error(
        "method mtp needs a model with a prediction module (num_nextn_predict_layers, or tensors \"mtp.\"), or the "
        "module's folder by --model-draft");
  auto net = std::make_unique<Mtp>();
  net->target_ = setup.target;
  net->feed_post_ = setup.options.feed_norm == "post", net->recycle_post_ = setup.options.recycle_norm == "post";
  HUNCH_OK(net->read_drafter(setup));
  net->rope_ = RopeTable(*setup.backend, net->shape_);
  return std::unique_ptr<Proposer>(std::make_unique<Follower>(setup, std::move(net)));
}

const Register<Proposer> mtp{"mtp", "the prediction module in the model's own checkpoint", Mtp::make};

}
}
