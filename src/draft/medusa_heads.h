// MedusaHeads: the weights of Medusa's heads (Cai et al., 2024, section 2.1) from their two published layouts, for
// proposers/medusa.cpp. Head h takes the target's hidden state behind its last norm, which the target's own head would turn into
// the next token, and says what stands h + 1 further.
//
//   x <- x + silu(W x + b), once a layer;  logits = output(x)
#pragma once

#include "draft/drafter_tensors.h"
#include "draft/proposer.h"

namespace hunch {

class MedusaHeads {
 public:
  // Errors name the file, the tensor or key, and what the target has where the two do not fit. Every tensor must be known.
  static Result<MedusaHeads> read(const Proposer::Setup&);

  int count() const { return int(heads_.size()); }
  int64_t hidden() const { return hidden_; }
  int64_t vocab() const { return vocab_; }  // of logits
  size_t bytes() const { return bytes_; }   // of all matrices
  // The target's ids of its own; data null: the same numbering.
  View<const int32_t, 1> vocabulary() const {
    return vocabulary_ ? vocabulary_.view<const int32_t>(vocab_) : View<const int32_t, 1>{};
  }
  bool one_output() const { return heads_.size() == 1 || !heads_[0].output; }  // rows of different heads share a product

  // All layers of a head but its output; x and scratch [rows][hidden].
  void transform(Backend&, int head, View<float, 2> x, View<float, 2> scratch) const;
  void logits(Backend& backend, int head, View<const float, 2> x, View<float, 2> logits) const {
    const Weight* output = heads_[head].output ? heads_[head].output.get() : shared_.get();
    if (output) multiply(backend, x, *output, {}, logits);
    else target_->logits(backend, x, logits);
  }

 private:
  struct Layer {
    std::unique_ptr<Weight> weight;
    Buffer bias;  // may be empty
  };
  struct Head {
    std::vector<Layer> layers;       // empty places repeat the first
    std::unique_ptr<Weight> output;  // null: shared_, or the target's
  };

  Status read_first(const Proposer::Setup&);
  Status read_vllm(const Proposer::Setup&);
  Status read_token_map(const Proposer::Setup&);
  Status check_tensor(DrafterFile&, const std::string& name, int64_t rows, int64_t columns) const;

  const Model* target_ = nullptr;
  int64_t hidden_ = 0, vocab_ = 0;
  size_t bytes_ = 0;
  std::vector<Head> heads_;
  std::unique_ptr<Weight> shared_;
  Buffer vocabulary_, ones_;
};

}
