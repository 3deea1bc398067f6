#include "model/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "checkpoint/quantise.h"
#include "model/rope_frequencies.h"

namespace hunch {
namespace {

const float* floats(const Buffer& b) { return static_cast<const float*>(b.data()); }

// Loads tensors by name; every name was checked against the shape when the checkpoint was opened.
class Loader {
 public:
  explicit Loader(const Model::Setup& setup) : setup_(setup) {}

  Buffer vector(const std::string& name) {  // empty if the file has none
    const Tensor* tensor = setup_.checkpoint->find(name);
    if (!tensor) return {};
    row_.resize(size_t(tensor->shape.back()));
    if (!tensor->data) std::fill(row_.begin(), row_.end(), name.ends_with("norm.weight") ? 1.0f : 0.0f);
    else dequantise_row(tensor->dtype, tensor->data, row_.data(), int64_t(row_.size()));
    return setup_.backend->constant(row_);
  }
  std::unique_ptr<Weight> matrix(const std::string& name, size_t& bytes) {
    const Tensor* tensor = setup_.checkpoint->find(name);
    if (!tensor) return nullptr;
    auto weight = !tensor->data ? setup_.backend->random_weight(setup_.requantise.value_or(tensor->dtype), tensor->shape.front(),
                                                                tensor->shape.back(), tensor->seed)
                  : requantise(*tensor) ? setup_.backend->load_weight(requantised_)
                                        : setup_.backend->load_weight(*tensor);
    bytes += weight->bytes;
    return weight;
  }

 private:
  // True if requantised_ now holds the tensor in the wanted encoding.
  bool requantise(const Tensor& tensor) {
    const auto type = setup_.requantise;
    if (!type || tensor.dtype == *type || tensor.shape.back() % dtype_info(*type).block != 0) return false;
    const int64_t columns = tensor.shape.back(), rows = tensor.shape.front();
    const size_t to_bytes = dtype_bytes(*type, size_t(columns));
    row_.resize(size_t(columns));
    bytes_.resize(to_bytes * size_t(rows));
    for (int64_t row = 0; row < rows; ++row) {
      dequantise_row(tensor, row, row_.data());
      quantise_row(*type, row_.data(), bytes_.data() + size_t(row) * to_bytes, columns);
    }
    requantised_ = tensor;
    requantised_.dtype = *type;
    requantised_.data = bytes_.data();
    requantised_.bytes = bytes_.size();
    requantised_.scales = {};
    return true;
  }

  const Model::Setup& setup_;
  std::vector<float> row_;
  std::vector<std::byte> bytes_;
  Tensor requantised_;
};

}  // namespace

Result<std::unique_ptr<Model>> Decoder::make(const Setup& setup, const Form& form) {
  const ModelShape& shape = setup.checkpoint->shape();
  if (shape.qk_norm != form.qk_norm)
    return Error{fmt::format("{}: the file {} q/k norm weights, the family {}", shape.family, shape.qk_norm ? "has" : "lacks",
                             form.qk_norm ? "needs them" : "has none")};
  if (shape.qkv_bias && !form.qkv_bias_allowed)
    return Error{fmt::format("{}: attention biases are not part of this family", shape.family)};

  auto model = std::unique_ptr<Decoder>(new Decoder);
  model->shape_ = shape;
  const RopeFrequencies rope = rope_frequencies(shape);
  model->inv_freq_ = setup.backend->constant(rope.inv_freq);
  model->rope_magnitude_ = rope.magnitude;

  Loader load(setup);
  size_t table_bytes = 0;
  model->embedding_ = load.matrix("token_embd.weight", table_bytes);
  model->output_norm_ = load.vector("output_norm.weight");
  if (!shape.tied_head) model->head_ = load.matrix("output.weight", model->weight_bytes_);
  else model->weight_bytes_ += table_bytes;
  for (int i = 0; i < shape.layers; ++i) {
    const auto name = [i](const char* part) { return fmt::format("blk.{}.{}", i, part); };
    const auto matrix = [&](const char* part) { return load.matrix(name(part), model->weight_bytes_); };
    Layer layer;
    layer.attention_norm = load.vector(name("attn_norm.weight"));
    layer.ffn_norm = load.vector(name("ffn_norm.weight"));
    if (form.qk_norm)
      layer.q_norm = load.vector(name("attn_q_norm.weight")), layer.k_norm = load.vector(name("attn_k_norm.weight"));
    layer.q_bias = load.vector(name("attn_q.bias"));
    layer.k_bias = load.vector(name("attn_k.bias"));
    layer.v_bias = load.vector(name("attn_v.bias"));
    layer.o_bias = load.vector(name("attn_output.bias"));
    layer.q = matrix("attn_q.weight"), layer.k = matrix("attn_k.weight"), layer.v = matrix("attn_v.weight");
    layer.o = matrix("attn_output.weight");
    layer.gate = matrix("ffn_gate.weight"), layer.up = matrix("ffn_up.weight"), layer.down = matrix("ffn_down.weight");
    HUNCH_CHECK(layer.q && layer.k && layer.v && layer.o && layer.gate && layer.up && layer.down);
    model->layers_.push_back(std::move(layer));
    if (setup.progress) setup.progress(i + 1, shape.layers);
  }
  return std::unique_ptr<Model>(std::move(model));
}

// Activations of one pass, all from the pass's arena.
struct Decoder::Scratch {
  View<float, 2> x, normed;       // [rows][hidden] residual stream and its norm
  View<float, 2> q, k, v, mixed;  // [rows][heads head_dim], kv: [rows][kv_heads head_dim], attention's output
  View<float, 2> gate, up;        // [rows][ffn]
  View<float, 3> cos_sin;         // [rows][rope_dim / 2][2]
};

void Decoder::attention(Pass& pass, int index, Scratch& s) const {
  const Layer& layer = layers_[size_t(index)];
  Backend& backend = pass.backend();
  const int64_t rows = pass.num_rows(), dim = shape_.head_dim;
  const auto heads = [&](View<float, 2> x, int64_t n) { return View<float, 3>(x.data, rows, n, dim); };

  backend.norm({.x = s.x, .weight = floats(layer.attention_norm), .eps = shape_.norm_eps, .out = s.normed});
  const Product qkv[] = {{layer.q.get(), floats(layer.q_bias), s.q},
                         {layer.k.get(), floats(layer.k_bias), s.k},
                         {layer.v.get(), floats(layer.v_bias), s.v}};
  backend.matmul({.x = s.normed, .products = qkv});
  backend.ready_heads({.q = heads(s.q, shape_.heads),
                       .k = heads(s.k, shape_.kv_heads),
                       .q_norm = floats(layer.q_norm),
                       .k_norm = floats(layer.k_norm),
                       .eps = shape_.norm_eps,
                       .cos_sin = s.cos_sin,
                       .pairs = shape_.rope_pairs});
  pass.attend(index, {.q = heads(s.q, shape_.heads),
                      .k = heads(s.k, shape_.kv_heads),
                      .v = heads(s.v, shape_.kv_heads),
                      .out = heads(s.mixed, shape_.heads),
                      .scale = 1.0f / std::sqrt(float(dim))});
  const Product out[] = {{layer.o.get(), floats(layer.o_bias), s.x}};
  backend.matmul({.x = s.mixed, .products = out, .accumulate = true});
}

void Decoder::feed_forward(Pass& pass, int index, Scratch& s) const {
  const Layer& layer = layers_[size_t(index)];
  Backend& backend = pass.backend();
  backend.norm({.x = s.x, .weight = floats(layer.ffn_norm), .eps = shape_.norm_eps, .out = s.normed});
  const Product both[] = {{layer.gate.get(), nullptr, s.gate}, {layer.up.get(), nullptr, s.up}};
  backend.matmul({.x = s.normed, .products = both});
  backend.gate({.gate = s.gate, .up = s.up, .out = s.gate});
  const Product down[] = {{layer.down.get(), nullptr, s.x}};
  backend.matmul({.x = s.gate, .products = down, .accumulate = true});
}

void Decoder::forward(Pass& pass, View<float, 2> hidden, std::span<const uint8_t> skipped) const {
  HUNCH_CHECK(skipped.empty() || skipped.size() == layers_.size());
  const int64_t rows = pass.num_rows(), attention_dim = int64_t(shape_.heads) * shape_.head_dim;
  const int64_t kv_dim = int64_t(shape_.kv_heads) * shape_.head_dim,
                pairs = (shape_.rope_dim > 0 ? shape_.rope_dim : shape_.head_dim) / 2;
  Arena& arena = pass.arena();
  Scratch s;
  s.x = arena.take<float>(rows, shape_.hidden);
  s.normed = arena.take<float>(rows, shape_.hidden);
  s.q = arena.take<float>(rows, attention_dim);
  s.k = arena.take<float>(rows, kv_dim);
  s.v = arena.take<float>(rows, kv_dim);
  s.mixed = arena.take<float>(rows, attention_dim);
  s.gate = arena.take<float>(rows, shape_.ffn);
  s.up = arena.take<float>(rows, shape_.ffn);
  s.cos_sin = arena.take<float>(rows, pairs, 2);

  Backend& backend = pass.backend();
  backend.embed({.ids = pass.ids(), .table = embedding_.get(), .out = s.x});
  backend.rope_angles({.positions = pass.positions(),
                       .inv_freq = inv_freq_.view<float>(pairs),
                       .magnitude = rope_magnitude_,
                       .cos_sin = s.cos_sin});
  for (int layer = 0; layer < shape_.layers; ++layer) {
    if (!skipped.empty() && skipped[size_t(layer)]) continue;
    attention(pass, layer, s);
    feed_forward(pass, layer, s);
  }
  backend.norm({.x = s.x, .weight = floats(output_norm_), .eps = shape_.norm_eps, .out = hidden});
}

void Decoder::logits(Backend& backend, View<const float, 2> hidden, View<float, 2> logits) const {
  const Product product[] = {{head_ ? head_.get() : embedding_.get(), nullptr, logits}};
  backend.matmul({.x = hidden, .products = product});
}

}  // namespace hunch
