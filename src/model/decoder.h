// Decoder: the common pre-norm transformer of the Llama line. A family file states its form; everything else is in the shape.
#pragma once

#include <memory>
#include <vector>

#include "model/model.h"

namespace hunch {

class Decoder final : public Model {
 public:
  // What distinguishes families that are otherwise the same; checked against the checkpoint's shape.
  struct Form {
    bool qkv_bias_allowed = false;
    bool qk_norm = false;
  };
  static Result<std::unique_ptr<Model>> make(const Setup&, const Form&);

  const ModelShape& shape() const override { return shape_; }
  size_t weight_bytes() const override { return weight_bytes_; }
  void forward(Pass&, View<float, 2> hidden, std::span<const uint8_t> skipped = {}) const override;
  void logits(Backend&, View<const float, 2> hidden, View<float, 2> logits) const override;

 private:
  struct Layer {
    Buffer attention_norm, ffn_norm;  // fp32 [hidden]
    Buffer q_norm, k_norm;            // fp32 [head_dim], empty without qk_norm
    Buffer q_bias, k_bias, v_bias, o_bias;
    std::unique_ptr<Weight> q, k, v, o;      // [heads head_dim][hidden] ... [hidden][heads head_dim]
    std::unique_ptr<Weight> gate, up, down;  // [ffn][hidden], [ffn][hidden], [hidden][ffn]
  };
  struct Scratch;
  void attention(Pass&, int layer, Scratch&) const;
  void feed_forward(Pass&, int layer, Scratch&) const;

  ModelShape shape_;
  Buffer inv_freq_;
  float rope_magnitude_ = 1;
  std::unique_ptr<Weight> embedding_, head_;  // head_ null: tied
  Buffer output_norm_;
  std::vector<Layer> layers_;
  size_t weight_bytes_ = 0;
};

}  // namespace hunch
