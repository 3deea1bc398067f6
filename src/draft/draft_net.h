// DraftNet: the small network of a learned drafter. Row j takes the token at position j and a feature of the position before (the
// target's own where known, else what the row before gave), and says what follows at j + 1. So entry j of its cache depends on
// tokens 0..j alone, as in the target's, and pages are shared alike; published drafters count rows from the feature's position,
// which rotary attention cannot tell apart.
#pragma once

#include "checkpoint/shape.h"
#include "draft/proposer.h"
#include "model/layers.h"
#include "model/pass.h"

namespace hunch {

// Rows of what a token and what a feature makes, side by side.
struct TokenAndFeature {
  TokenAndFeature(Arena& arena, int64_t rows, int64_t width) : both(arena.take<float>(rows, 2 * width)), left(both), right(both) {
    left.extent[1] = right.extent[1] = width, right.data += width;
  }
  View<float, 2> both, left, right;
};

class DraftNet {
 public:
  virtual ~DraftNet() = default;
  // Of its own layers; `hidden` is the width of its features, `vocab_size` that of its logits.
  virtual const ModelShape& shape() const = 0;
  virtual size_t weight_bytes() const = 0;  // that one pass reads
  // False: a model of its own, which takes tokens alone, from position 0 on. True: row 0 does not exist.
  virtual bool takes_features() const { return true; }
  virtual std::vector<int> taps() const { return {}; }
  virtual int64_t longest() const { return INT64_MAX; }  // positions it may be asked for
  virtual int64_t scratch_floats() const { return 0; }   // a row, of the arena, beyond what a decoder of its shape needs
  // Features of target rows [first, first + count) (rows as they lie): [count][hidden]. `scratch`: free to use.
  virtual void fuse(Backend&, Arena& scratch, const TargetRows&, int64_t first, int64_t count, View<float, 2> out) const {
    (void)scratch, (void)first, (void)count, (void)out;
  }
  // `features` [rows][hidden]: one per row. out: `recycled` [rows][hidden], the feature for the row behind; `hidden`
  // [rows][hidden], what logits() takes; `recycled` may be the same view as either.
  virtual void forward(Pass&, View<const float, 2> features, View<float, 2> recycled, View<float, 2> hidden) const = 0;
  // The same of rows that nothing is drafted from, which only the cache need know: of one layer, little work. `room`
  // [rows][hidden], twice.
  virtual void remember(Pass& pass, View<const float, 2> features, View<float, 2> room, View<float, 2> more_room) const {
    forward(pass, features, room, more_room);
  }
  virtual void logits(Backend&, View<const float, 2> hidden, View<float, 2> logits) const = 0;
  // The target's ids of its own, no id twice, -1: never guessed; Backend::constant_ids(). Data null: the same numbering.
  virtual View<const int32_t, 1> vocabulary() const { return {}; }
  // [the target's ids] what it reads in place of each, host memory; empty: that id.
  virtual std::span<const int32_t> own_ids() const { return {}; }
  // True if what it guesses it reads under another number.
  virtual bool renumbers() const { return false; }
};

// One layer behind what a token and a feature are fused to; its logits are the target's.
class OneLayerNet : public DraftNet {
 public:
  const ModelShape& shape() const override { return shape_; }
  size_t weight_bytes() const override { return bytes_; }
  void logits(Backend& backend, View<const float, 2> hidden, View<float, 2> logits) const override {
    target_->logits(backend, hidden, logits);
  }
  void remember(Pass& pass, View<const float, 2> features, View<float, 2> room, View<float, 2> more_room) const override {
    BlockScratch scratch(pass.arena(), shape_, pass.num_rows());
    store_rows(pass, 0, shape_, attention_, scratch, read(pass, features, scratch, more_room, room));
  }

 protected:
  // As it is where there are no weights.
  void norm(Backend& backend, View<const float, 2> from, const Buffer& weight, View<float, 2> to) const {
    if (weight) backend.norm({.x = from, .weight = floats(weight), .eps = shape_.norm_eps, .out = to});
    else backend.copy_rows({.from = from, .to = to});
  }
  // x, and what attention takes of it, which is x or `normed`.
  View<const float, 2> read(
      Pass& pass, View<const float, 2> features, const BlockScratch& scratch, View<float, 2> normed, View<float, 2> x) const {
    Backend& backend = pass.backend();
    const auto [both, left, right] = TokenAndFeature(pass.arena(), pass.num_rows(), shape_.hidden);
    rope_.angles(pass, scratch);
    target_->embed(backend, pass.ids(), normed);
    norm(backend, normed, embedding_norm_, left);
    norm(backend, features, feature_norm_, right);
    multiply(backend, both, *fuse_, fuse_bias_, x);
    if (!attention_norm_) return x;
    norm(backend, x, attention_norm_, normed);
    return normed;
  }

  const Model* target_ = nullptr;
  ModelShape shape_;
  size_t bytes_ = 0;
  RopeTable rope_;
  std::unique_ptr<Weight> fuse_;
  Buffer fuse_bias_, embedding_norm_, feature_norm_, attention_norm_, ffn_norm_, output_norm_;  // any may be empty
  AttentionWeights attention_;
  FeedForwardWeights ffn_;
};

}
