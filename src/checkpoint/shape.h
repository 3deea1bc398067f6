// ModelShape: everything about a model's architecture that is not a weight. Filled from config.json or GGUF keys and validated by
// checkpoint/config.cpp, read by model/families/ and `hunch info`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace hunch {

struct RopeScaling {
  enum class Kind { None, Linear, Llama3, Yarn } kind = Kind::None;
  double factor = 1;
  double original_context = 0;                       // llama3, yarn
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  double attention_factor = 0;                       // yarn; 0: 0.1 ln(factor) + 1 (times mscale keys where given)
  bool truncate = true;                              // yarn: correction range rounded to whole dimensions
};

// Which two elements of a head rotate together.
enum class RopePairs { Halves /* i and i + D/2: Hugging Face, GGUF qwen2/qwen3 */, Neighbours /* 2i and 2i + 1: GGUF llama */ };

// Natively trained sparse attention (docs/nsa.md): a query reads compressed rows, chosen blocks and a window of one K and V, each
// with a soft maximum of its own, mixed by gates. Compressed row i stands for the tokens [i cmp_stride, i cmp_stride + cmp_len).
struct NsaShape {
  enum class Kind : uint8_t { Mean, Weighted, Linear } kind = Kind::Weighted;  // how cmp_len rows become one
  std::string variant;  // "std" or "fla", whose names and defaults the file has; empty: the model has ordinary attention
  int cmp_len = 0, cmp_stride = 0;
  bool rope_before = false;      // rotated keys are compressed; else unrotated ones, and the result rotated as token i cmp_stride
  bool block_positions = false;  // a learned offset for each of the cmp_len keys is added before
  int sel_block = 0, sel_count = 0;       // tokens of a block; blocks that a query reads, the forced ones included
  int init_blocks = 0, local_blocks = 0;  // forced: the first, and the last up to the query's own
  int window = 0;                         // keys, the query's own included; 0: no such branch

  bool used() const { return !variant.empty(); }
  // Compressed rows of `tokens` tokens: those whose last token is among them.
  int64_t rows_of(int64_t tokens) const { return tokens < cmp_len ? 0 : (tokens - cmp_len) / cmp_stride + 1; }
};

// Multi-head latent attention (DeepSeek-V2, section 2.1). The cache keeps one row a token, [latent | rotated key], which is the
// key and the value of a single KV head; per-head maps lead into the latent before attention and out of it behind.
inline constexpr int kMostLatentDim = 1024;  // of a cached row
struct LatentShape {
  int kv_rank = 0;                    // elements of the latent; 0: the model has ordinary attention
  int q_rank = 0;                     // of the latent that queries are made of; 0: they are made of the layer's input
  int nope = 0, rope = 0, value = 0;  // elements of a query head that are not rotated, and that are; of a value head
  double scale = 0;                   // of q.k
  bool split = false;                 // the file has the maps of keys and of values apart

  bool used() const { return kv_rank > 0; }
};

struct ModelShape {
  std::string family;  // the stem of a file in model/families: llama, mistral, qwen2, qwen3, qwen3_moe, gpt_oss, nsa, deepseek_v3
  std::string name;    // free text from the file, may be empty
  int64_t vocab_size = 0, hidden = 0, ffn = 0;
  int layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int context_len = 0;  // positions the model was trained for
  double norm_eps = 1e-6;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  RopePairs rope_pairs = RopePairs::Halves;
  int rope_dim = 0;                   // rotated elements of a head; head_dim unless attention is latent
  std::vector<float> rope_factors;    // GGUF llama3: `rope_freqs.weight`, divides each frequency; empty otherwise
  int sliding_window = 0;             // keys a row may look back over, its own included; 0: all
  std::vector<uint8_t> window_layer;  // [layers] 1 where sliding_window applies; empty: everywhere if sliding_window > 0
  int prediction_layers = 0;          // MTP layers behind the model's own in the file; not part of the model
  bool tied_head = false;             // no output matrix of its own
  bool qkv_bias = false, output_bias = false, qk_norm = false;
  bool attention_sinks = false;  // a learned logit of every head and layer that takes weight and has no value
  std::vector<int32_t> eos_ids;  // end of generation, from generation_config/config or GGUF keys

  // Mixture of experts: a router sends a row to the `experts_per_token` of `num_experts` small feed-forward blocks.
  int num_experts = 0, experts_per_token = 0;  // 0: no layer has experts
  int64_t expert_ffn = 0;                      // width of one; `ffn` is that of the layers without
  bool norm_expert_shares = false;             // the chosen experts' shares are divided by their sum
  bool shares_of_chosen = false;               // they are the softmax over the chosen experts' logits, not over all
  bool expert_bias = false;                    // router and experts have biases
  double gate_limit = 0, gate_alpha = 1;       // of the experts' gates (GateClamp of backend/ops/norm.h); 0: plain
  // DeepSeek's. Shares are sigmoids, experts are chosen with a bias; only those of the best groups can be; shares times a number.
  bool sigmoid_shares = false;
  int expert_groups = 1, groups_per_token = 1;
  double share_scale = 1;
  int64_t shared_ffn = 0;  // width of the block that every row goes to beside its experts; 0: none
  std::vector<uint8_t>
      expert_layer;  // [layers and DeepSeek's MTP layers] 1 where the feed-forward block is one of experts; empty: nowhere

  NsaShape nsa;  // of all layers
  LatentShape latent;

  int window_of(int layer) const { return window_layer.empty() || window_layer[layer] ? sliding_window : 0; }
  bool has_experts(int layer) const { return !expert_layer.empty() && expert_layer[layer]; }
  bool has_dense_ffn() const {  // some layer has a feed-forward block of its own
    for (const uint8_t experts : expert_layer)
      if (!experts) return true;
    return expert_layer.empty();
  }
  int64_t widest_ffn() const { return std::max({has_dense_ffn() ? ffn : 0, expert_ffn, shared_ffn}); }
  int64_t attended() const { return int64_t(heads) * (latent.used() ? latent.value : head_dim); }  // what the output matrix takes
  int64_t kv_elements_per_token() const { return int64_t(2) * layers * kv_heads * head_dim; }
};

}
