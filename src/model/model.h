// INTERFACE 3: weights plus a layer loop. A family is a file in families/ that registers itself under its name.
#pragma once

#include "model/pass.h"

namespace hunch {

class Model {
 public:
  struct Setup {
    Backend* backend = nullptr;
    const Checkpoint* checkpoint = nullptr;  // may be closed once the model is made
    std::optional<DType> requantise;         // matrices in this encoding instead of the file's: cheaper weights for drafts
    std::function<void(int64_t done, int64_t total)> progress = {};
  };
  virtual ~Model() = default;
  virtual const ModelShape& shape() const = 0;
  virtual size_t weight_bytes() const = 0;  // read by one pass of one row, the head included

  // Final hidden states after the last norm: [rows][hidden]. `skipped` (empty, or a byte a layer): layers left out of drafts;
  // their input is their output, they neither write nor read K and V. `hidden` null: of the last layer only K and V are made.
  virtual void forward(Pass&, View<float, 2> hidden, std::span<const uint8_t> skipped = {}) const = 0;
  virtual void logits(Backend&, View<const float, 2> hidden, View<float, 2> logits) const = 0;
  virtual void embed(Backend&, View<const int32_t, 1> ids, View<float, 2> out) const = 0;  // [rows][hidden]
};

}
