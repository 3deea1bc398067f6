// The blocks that decoders and drafters are made of: attention over the pass's cache, the gated feed-forward, and how their
// weights are loaded. Each names its tensors' shapes; none owns activations.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "model/pass.h"

namespace hunch {

inline const float* floats(const Buffer& b) { return static_cast<const float*>(b.data()); }

// Tensors of a file to the backend's forms. `find` returns null for what the file lacks.
class WeightLoader {
 public:
  using Find = std::function<const Tensor*(const std::string& name)>;
  // `requantise`: matrices in this encoding instead of the file's, where their rows divide into its blocks.
  WeightLoader(Backend& backend, Find find, std::optional<DType> requantise = {})
      : backend_(backend), find_(std::move(find)), requantise_(requantise) {}

  Buffer vector(const std::string& name);  // fp32; empty if the file has none
  std::unique_ptr<Weight> matrix(const std::string& name);
  // Of a matrix whose rows alternate between two, `step` rows at a time: the first or the second.
  std::unique_ptr<Weight> every_second(const std::string& name, int64_t step, bool second);
  size_t bytes() const { return bytes_; }  // that products with all matrices so far read
  // That every matrix found memory; names the first that did not.
  Status status() const;

 private:
  bool requantise(const Tensor& tensor);
  std::unique_ptr<Weight> count(std::unique_ptr<Weight> weight, const std::string& name);

  Backend& backend_;
  Find find_;
  std::optional<DType> requantise_;
  size_t bytes_ = 0;
  std::string left_out_;
  std::vector<float> row_;
  std::vector<std::byte> converted_bytes_;
  Tensor converted_;
};

struct AttentionWeights {
  std::unique_ptr<Weight> q, k, v, o;  // [heads head_dim][in], [kv_heads head_dim][in] twice, [hidden][heads head_dim]
  Buffer q_bias, k_bias, v_bias, o_bias;
  Buffer q_norm, k_norm;         // fp32 [head_dim]; empty: no norm of heads
  std::unique_ptr<Weight> gate;  // like q; null: none. Attention's output times sigmoid(gate(in)), in front of o

  bool complete() const { return q && k && v && o; }
};

struct FeedForwardWeights {
  std::unique_ptr<Weight> gate, up, down;  // [ffn][hidden] twice, [hidden][ffn]

  bool complete() const { return gate && up && down; }
};

// Activations that the blocks of one pass share, from its arena.
struct BlockScratch {
  BlockScratch(Arena&, const ModelShape&, int64_t rows);
  View<float, 2> q, k, v, mixed;  // [rows][heads head_dim], kv: [rows][kv_heads head_dim], attention's output
  View<float, 2> gate, up;        // [rows][ffn]
  View<float, 3> cos_sin;         // [rows][rope_dim / 2][2]
};

// Angles of the pass's positions into scratch.cos_sin.
class RopeTable {
 public:
  RopeTable() = default;
  RopeTable(Backend&, const ModelShape&);
  void angles(Pass&, const BlockScratch&) const;

 private:
  Buffer inv_freq_;
  int64_t pairs_ = 0;
  float magnitude_ = 1;
};

// x += o(attention of `in`), in [rows][in]: normed rows, of whatever width q, k and v take.
void attend(Pass&, int layer, const ModelShape&, const AttentionWeights&, BlockScratch&, View<const float, 2> in,
            View<float, 2> x);
// x += down(silu(gate(in)) * up(in)).
void feed_forward(Backend&, const FeedForwardWeights&, BlockScratch&, View<const float, 2> in, View<float, 2> x);

// A product with one weight; `bias` may be empty.
inline void multiply(Backend& backend, View<const float, 2> x, const Weight& weight, const Buffer& bias, View<float, 2> out) {
  const Product product[] = {{&weight, floats(bias), out}};
  backend.matmul({.x = x, .products = product});
}

}  // namespace hunch
