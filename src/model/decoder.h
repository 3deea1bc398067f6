// Decoder: the common pre-norm transformer of the Llama line. A family file states its form; everything else is in the shape.
#pragma once

#include "model/layers.h"
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
  void embed(Backend&, View<const int32_t, 1> ids, View<float, 2> out) const override;

 private:
  struct Layer {
    Buffer attention_norm, ffn_norm;  // fp32 [hidden]
    AttentionWeights attention;
    FeedForwardWeights ffn;
  };

  ModelShape shape_;
  RopeTable rope_;
  OwnedWeight embedding_, head_;  // head_ null: tied
  Buffer output_norm_;
  std::vector<Layer> layers_;
  size_t weight_bytes_ = 0;
};

}
