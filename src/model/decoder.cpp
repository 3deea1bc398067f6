#include "model/decoder.h"

#include "base/failure.h"

namespace hunch {

Result<std::unique_ptr<Model>> Decoder::make(const Setup& setup, const Form& form) {
  const ModelShape& shape = setup.checkpoint->shape();
  if (shape.qk_norm != form.qk_norm)
    return failure("{}: the file {} q/k norm weights, the family {}", shape.family, shape.qk_norm ? "has" : "lacks",
        form.qk_norm ? "needs them" : "has none");
  if (shape.qkv_bias && !form.qkv_bias_allowed) return failure("{}: attention biases are not part of this family", shape.family);

  if (shape.num_experts > 0 && !setup.backend->has_experts())
    return failure("{}: mixtures of experts do not run on {} yet; use --device cpu, or a model without experts", shape.family,
        setup.backend->description());

  if (const std::string lacking = setup.backend->lacks(*setup.checkpoint); !lacking.empty())
    return failure("{}: {} has no {} yet; use --device cpu", shape.family, setup.backend->description(), lacking);
  if (shape.nsa.used() && !setup.backend->has_nsa())
    return failure("{}: natively trained sparse attention does not run on {} yet; use --device cpu", shape.family,
        setup.backend->description());

  auto model = std::unique_ptr<Decoder>(new Decoder);
  model->shape_ = shape;
  model->rope_ = RopeTable(*setup.backend, shape);

  WeightLoader load(
      *setup.backend, [&](const std::string& name) { return setup.checkpoint->find(name); }, setup.requantise);
  model->embedding_ = load.matrix("token_embd.weight");
  const size_t table_bytes = load.bytes();
  model->output_norm_ = load.vector("output_norm.weight");
  if (!shape.tied_head) model->head_ = load.matrix("output.weight");
  HUNCH_OK(load.status());
  size_t idle_bytes = 0;
  for (int i = 0; i < shape.layers; ++i) {
    const auto name = [i](const char* part) { return fmt::format("blk.{}.{}", i, part); };
    Layer layer;
    AttentionWeights& a = layer.attention;
    layer.attention_norm = load.vector(name("attn_norm.weight"));
    layer.ffn_norm = load.vector(name("ffn_norm.weight"));
    if (form.qk_norm) a.q_norm = load.vector(name("attn_q_norm.weight")), a.k_norm = load.vector(name("attn_k_norm.weight"));
    a.q_bias = load.vector(name("attn_q.bias"));
    a.k_bias = load.vector(name("attn_k.bias"));
    a.v_bias = load.vector(name("attn_v.bias"));
    a.o_bias = load.vector(name("attn_output.bias"));
    a.sinks = load.vector(name("attn_sinks.weight"));
    if (shape.latent.used()) a.latent = load_latent(load, shape, i);
    else
      a.q = load.matrix(name("attn_q.weight")), a.k = load.matrix(name("attn_k.weight")),
      a.v = load.matrix(name("attn_v.weight"));
    a.o = load.matrix(name("attn_output.weight"));
    if (shape.nsa.used()) a.nsa = load_nsa(*setup.backend, load, shape, i);
    layer.ffn = load_feed_forward(load, shape, i);
    HUNCH_OK(load.status());
    HUNCH_CHECK(a.complete() && layer.ffn.complete());
    idle_bytes += layer.ffn.idle_bytes();
    model->layers_.push_back(std::move(layer));
    if (setup.progress) setup.progress(i + 1, shape.layers);
  }
  // A pass reads the table as the head, or a row of it per token; a pass of one row leaves most experts alone.
  model->weight_bytes_ = load.bytes() - (shape.tied_head ? 0 : table_bytes) - idle_bytes;
  return std::unique_ptr<Model>(std::move(model));
}

void Decoder::forward(Pass& pass, View<float, 2> hidden, std::span<const uint8_t> skipped) const {
  HUNCH_CHECK(skipped.empty() || skipped.size() == layers_.size());
  const int64_t rows = pass.num_rows();
  Arena& arena = pass.arena();
  const auto x = arena.take<float>(rows, shape_.hidden), normed = arena.take<float>(rows, shape_.hidden);
  BlockScratch scratch(arena, shape_, rows);
  Backend& backend = pass.backend();
  embed(backend, pass.ids(), x);
  rope_.angles(pass, scratch);
  for (int i = 0; i < shape_.layers; ++i) {
    if (!skipped.empty() && skipped[i]) continue;
    const Layer& layer = layers_[i];
    backend.norm({.x = x, .weight = floats(layer.attention_norm), .eps = shape_.norm_eps, .out = normed});
    if (!hidden.data && i + 1 == shape_.layers) return store_rows(pass, i, shape_, layer.attention, scratch, normed);
    attend(pass, i, shape_, layer.attention, scratch, normed, x);
    backend.norm({.x = x, .weight = floats(layer.ffn_norm), .eps = shape_.norm_eps, .out = normed});
    for (const Pass::Part& part : pass.parts())
      feed_forward(
          backend, layer.ffn, scratch, normed.slice(part.first, part.rows), x.slice(part.first, part.rows), i, part.check);
    pass.layer_output(i, x);
  }
  backend.norm({.x = x, .weight = floats(output_norm_), .eps = shape_.norm_eps, .out = hidden});
}

void Decoder::embed(Backend& backend, View<const int32_t, 1> ids, View<float, 2> out) const {
  backend.embed({.ids = ids, .table = embedding_.get(), .out = out});
}

void Decoder::logits(Backend& backend, View<const float, 2> hidden, View<float, 2> logits) const {
  const Product product[] = {{head_ ? head_.get() : embedding_.get(), nullptr, logits}};
  backend.matmul({.x = hidden, .products = product});
}

}
