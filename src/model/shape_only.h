// For tests: a model that has a shape and nothing else, for drafters that only ask what their target looks like.
#pragma once

#include "model/model.h"

namespace hunch::test {

class ShapeOnly final : public Model {
 public:
  explicit ShapeOnly(ModelShape shape) : shape_(std::move(shape)) {}
  const ModelShape& shape() const override { return shape_; }
  size_t weight_bytes() const override { return 0; }
  void forward(Pass&, View<float, 2>, std::span<const uint8_t>) const override {}
  void logits(Backend&, View<const float, 2>, View<float, 2>) const override {}
  void embed(Backend&, View<const int32_t, 1>, View<float, 2>) const override {}

 private:
  ModelShape shape_;
};

}
