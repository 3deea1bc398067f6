// Loads a drafter's tensors by their published names, each with its shape; the first error is kept, so that loading reads as a
// list. Used by proposers/.
#pragma once

#include "checkpoint/drafter_file.h"
#include "model/layers.h"

namespace hunch {

class DrafterTensors {
 public:
  DrafterTensors(Backend& backend, DrafterFile& file)
      : file_(file), load_(backend, [this](const std::string& name) { return file_.find(name); }) {}

  // Empty where the file lacks it (an error if `needed`) or where something failed before.
  std::unique_ptr<Weight> matrix(const std::string& name, int64_t out, int64_t in, bool needed = true) {
    return good(name, {out, in}, needed) ? load_.matrix(name) : nullptr;
  }
  // Of a matrix whose rows alternate between two, `step` rows at a time: the first or the second, [out][in].
  std::unique_ptr<Weight> half(const std::string& name, int64_t out, int64_t in, int64_t step, bool second) {
    return good(name, {2 * out, in}, true) ? load_.every_second(name, step, second) : nullptr;
  }
  Buffer vector(const std::string& name, int64_t size, bool needed = true) {
    return good(name, {size}, needed) ? load_.vector(name) : Buffer{};
  }
  // A Llama-style layer's attention over rows of `in` elements; biases and norms of heads where the file has them.
  AttentionWeights attention(const std::string& at, const ModelShape& shape, int64_t in, bool with_q = true) {
    const int64_t queries = int64_t(shape.heads) * shape.head_dim, keys = int64_t(shape.kv_heads) * shape.head_dim;
    AttentionWeights out;
    if (with_q) out.q = matrix(at + "q_proj.weight", queries, in);
    out.q_bias = vector(at + "q_proj.bias", queries, false);
    out.k = matrix(at + "k_proj.weight", keys, in), out.k_bias = vector(at + "k_proj.bias", keys, false);
    out.v = matrix(at + "v_proj.weight", keys, in), out.v_bias = vector(at + "v_proj.bias", keys, false);
    out.o = matrix(at + "o_proj.weight", shape.hidden, queries), out.o_bias = vector(at + "o_proj.bias", shape.hidden, false);
    out.q_norm = vector(at + "q_norm.weight", shape.head_dim, false);
    out.k_norm = vector(at + "k_norm.weight", shape.head_dim, false);
    return out;
  }
  FeedForwardWeights feed_forward(const std::string& at, const ModelShape& shape) {
    FeedForwardWeights out;
    out.gate = matrix(at + "gate_proj.weight", shape.ffn, shape.hidden);
    out.up = matrix(at + "up_proj.weight", shape.ffn, shape.hidden);
    out.down = matrix(at + "down_proj.weight", shape.hidden, shape.ffn);
    return out;
  }
  size_t bytes() const { return load_.bytes(); }  // of all matrices so far
  Status status() const { return status_.ok() ? load_.status() : status_; }

 private:
  bool good(const std::string& name, std::vector<int64_t> shape, bool needed) {
    if (!status_.ok() || (!needed && !file_.has(name))) return false;
    if (auto tensor = file_.take(name, std::move(shape)); !tensor.ok()) status_ = tensor.error();
    return status_.ok();
  }

  DrafterFile& file_;
  WeightLoader load_;
  Status status_;
};

}
