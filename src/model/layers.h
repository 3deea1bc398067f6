// The blocks of decoders and drafters: attention over the pass's cache, the gated feed-forward, and how their weights are loaded.
// Each names its tensors' shapes; none owns activations.
#pragma once

#include "base/workers.h"
#include "model/pass.h"

namespace hunch {

using OwnedWeight = std::unique_ptr<Weight>;

inline const float* floats(const Buffer& b) { return static_cast<const float*>(b.data()); }

// Tensors of a file to the backend's forms. `find` returns null for what the file lacks.
class WeightLoader {
 public:
  using Find = std::function<const Tensor*(const std::string& name)>;
  // `requantise`: matrices in this encoding instead of the file's, where their rows divide into its blocks.
  WeightLoader(Backend& backend, Find find, std::optional<DType> requantise = {})
      : backend_(backend), find_(std::move(find)), requantise_(requantise) {}

  Buffer vector(const std::string& name);  // fp32, a matrix row by row; empty if the file has none
  // All elements, fp32; empty if the file has none. Random tensors: what makes rows that are summed with them their mean.
  std::vector<float> values(const std::string& name);
  OwnedWeight matrix(const std::string& name);
  // As the file has it, or in fp32 where that is in fewer than 16 bits: for products whose result decides something.
  OwnedWeight exact_matrix(const std::string& name);
  // Of a matrix whose rows alternate between two, `step` rows at a time: the first or the second.
  OwnedWeight every_second(const std::string& name, int64_t step, bool second);
  // Rows [first, first + rows) of a tensor taken as rows of its last extent; transposed: a matrix of as many columns. In fp32
  // where scales or blocks would not survive.
  OwnedWeight part(const std::string& name, int64_t first, int64_t rows, bool transposed);
  size_t bytes() const { return bytes_; }  // that products with all matrices so far read
  // That every matrix found memory; names the first that did not.
  Status status() const;

 private:
  bool requantise(const Tensor& tensor);
  void convert(const Tensor& tensor, DType type);
  OwnedWeight count(OwnedWeight weight, const std::string& name);

  Backend& backend_;
  Find find_;
  std::optional<DType> requantise_;
  size_t bytes_ = 0;
  std::string left_out_;
  std::vector<float> row_;
  std::vector<std::byte> converted_bytes_;
  std::optional<Workers> workers_;
  Tensor converted_;
};

// Natively trained sparse attention (backend/ops/nsa.h): its gates, and how it compresses.
struct NsaWeights {
  NsaShape shape;
  OwnedWeight gate;                     // [3 heads][hidden], row 3 head + branch
  Buffer key, value, offset, inv_freq;  // as NsaLayer wants them
  float magnitude = 1;

  NsaLayer layer() const { return {&shape, floats(key), floats(value), floats(offset), floats(inv_freq), magnitude}; }
};
std::unique_ptr<NsaWeights> load_nsa(Backend&, WeightLoader&, const ModelShape&, int layer);

// Latent attention (LatentShape).
struct LatentWeights {
  LatentShape shape;
  OwnedWeight q_down, q, kv_down;       // [q_rank][hidden] or null, [heads (nope + rope)][in], [kv_rank + rope][hidden]
  std::vector<OwnedWeight> key, value;  // of each head: [kv_rank][nope], [value][kv_rank]
  Buffer q_norm, kv_norm;               // fp32 [q_rank], [kv_rank]

  bool complete() const;
};
// Tensors of a model's layer "blk.N.", as its shape has them.
std::unique_ptr<LatentWeights> load_latent(WeightLoader&, const ModelShape&, int layer);

struct AttentionWeights {
  OwnedWeight q, k, v, o;  // [heads head_dim][in], [kv_heads head_dim][in] twice, [hidden][heads head_dim]
  Buffer q_bias, k_bias, v_bias, o_bias;
  Buffer q_norm, k_norm;                  // fp32 [head_dim]; empty: no norm of heads
  Buffer sinks;                           // fp32 [heads]; empty: none (AttentionArgs)
  OwnedWeight gate;                       // like q; null: none. Attention's output times sigmoid(gate(in)), in front of o
  std::unique_ptr<NsaWeights> nsa;        // null: ordinary attention
  std::unique_ptr<LatentWeights> latent;  // null: likewise; else in place of q, k and v

  bool complete() const { return o && (latent ? latent->complete() : q && k && v); }
};

// A mixture of experts in place of one feed-forward block (backend/ops/experts.h).
struct ExpertWeights {
  OwnedWeight router;                    // [experts][hidden]
  std::vector<OwnedWeight> owned;        // gate, up and down of each
  std::vector<Expert> all;               // by id
  Buffer router_bias;                    // [experts]; empty: none
  Buffer gate_bias, up_bias, down_bias;  // [experts][width] twice, [experts][hidden]; empty: none
  Buffer choice_bias;                    // [experts] (RouteArgs::bias); empty: none
  Routing routing = Routing::Softmax;
  int groups = 1, groups_kept = 1;
  float share_scale = 1;
  GateClamp clamp;
  int per_row = 0;         // experts that a row goes to
  bool normalise = false;  // their shares sum to 1
  size_t bytes = 0;        // of all experts, the router not included

  bool complete() const;
};

// The feed-forward block of a layer: three matrices, or experts, or both (a block that every row goes to beside its experts).
struct FeedForwardWeights {
  OwnedWeight gate, up, down;              // [ffn][hidden] twice, [hidden][ffn]
  std::unique_ptr<ExpertWeights> experts;  // null: dense

  bool complete() const {
    return gate || !experts ? gate && up && down && (!experts || experts->complete()) : experts->complete();
  }
  // Of experts that a pass of one row does not read.
  size_t idle_bytes() const;
};
// That of a model's layer, as its shape has it.
FeedForwardWeights load_feed_forward(WeightLoader&, const ModelShape&, int layer);

// Activations that the blocks of one pass share, from its arena.
struct BlockScratch {
  BlockScratch(Arena&, const ModelShape&, int64_t rows);
  View<float, 2> q, k, v, mixed;     // [rows][heads head_dim], kv: [rows][kv_heads head_dim], attention's output
  View<float, 2> latent, raw;        // [rows][q_rank], [rows][heads widest of a query and a value head]; latent attention only
  View<float, 2> branches;           // [rows][3 heads], gates of sparse attention; only where a model has it
  View<float, 2> gate, up;           // [rows][the widest block], used by as many columns as a block has
  View<float, 2> logits, shares;     // of the router: [rows][experts], [rows][experts per row]
  View<int32_t, 2> ids;              // [rows][experts per row]
  View<float, 2> gathered, product;  // [rows][hidden]; these five only where a layer has experts
  View<float, 3> cos_sin;            // [rows][rope_dim / 2][2]
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
void attend(
    Pass&, int layer, const ModelShape&, const AttentionWeights&, BlockScratch&, View<const float, 2> in, View<float, 2> x);
// Of attend() only what later rows read of these: their K and V.
void store_rows(Pass&, int layer, const ModelShape&, const AttentionWeights&, BlockScratch&, View<const float, 2> in);
// x += down(silu(gate(in)) * up(in)), or the sum over the experts that each row goes to, or both; `check` leaves some of it out.
void feed_forward(Backend&, const FeedForwardWeights&, BlockScratch&, View<const float, 2> in, View<float, 2> x, int layer = 0,
    SparseCheck* check = nullptr);

// A product with one weight; `bias` may be empty.
inline void multiply(Backend& backend, View<const float, 2> x, const Weight& weight, const Buffer& bias, View<float, 2> out) {
  const Product product[] = {{&weight, floats(bias), out}};
  backend.matmul({.x = x, .products = product});
}

}
