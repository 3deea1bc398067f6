// See latent_attention.h, and docs/decisions/2026-11-22-latent-attention.md for why it is kept this way.
#include "model/latent_attention.h"

#include <fmt/format.h>

namespace hunch {
namespace {

constexpr double kLatentEps = 1e-6;  // of the latents' norms, in every published implementation, whatever config.json says

// Columns [first, first + count) of rows that lie `stride` apart.
template <class T>
View<T, 2> columns(T* data, int64_t rows, int64_t stride, int64_t first, int64_t count) {
  View<T, 2> out(data + first, rows, count);
  out.stride[0] = stride;
  return out;
}

void rotate(
    Backend& backend, const ModelShape& shape, const LatentShape& s, const BlockScratch& scratch, float* data, int64_t n) {
  View<float, 3> part(data + s.kv_rank, scratch.k.extent[0], n, int64_t(s.rope));
  part.stride = {n * shape.head_dim, shape.head_dim, 1};
  backend.rope({.x = part, .cos_sin = scratch.cos_sin, .pairs = shape.rope_pairs});
}

// What the product left in scratch.k, as the cache has it.
void finish_rows(Backend& backend, const ModelShape& shape, const LatentWeights& w, const BlockScratch& scratch) {
  const auto latent = columns(scratch.k.data, scratch.k.extent[0], shape.head_dim, 0, w.shape.kv_rank);
  backend.norm({.x = latent, .weight = floats(w.kv_norm), .eps = kLatentEps, .out = latent});
  rotate(backend, shape, w.shape, scratch, scratch.k.data, 1);
}

}

bool LatentWeights::complete() const {
  const auto all = [](const auto& weights) {
    return !weights.empty() && std::ranges::all_of(weights, [](const auto& weight) { return bool(weight); });
  };
  return q && kv_down && (q_down || shape.q_rank == 0) && all(key) && all(value);
}

std::unique_ptr<LatentWeights> load_latent(WeightLoader& load, const ModelShape& model, int layer) {
  const auto name = [layer](const char* part) { return fmt::format("blk.{}.{}.weight", layer, part); };
  auto out = std::make_unique<LatentWeights>();
  const LatentShape& s = out->shape = model.latent;
  if (s.q_rank > 0) out->q_down = load.matrix(name("attn_q_a")), out->q_norm = load.vector(name("attn_q_a_norm"));
  out->q = load.matrix(name(s.q_rank > 0 ? "attn_q_b" : "attn_q"));
  out->kv_down = load.matrix(name("attn_kv_a_mqa")), out->kv_norm = load.vector(name("attn_kv_a_norm"));
  for (int64_t head = 0; head < model.heads; ++head) {
    if (s.split) {
      out->key.push_back(load.part(name("attn_k_b"), head * s.kv_rank, s.kv_rank, false));
      out->value.push_back(load.part(name("attn_v_b"), head * s.value, s.value, false));
    } else {
      const int64_t first = head * (s.nope + s.value);
      out->key.push_back(load.part(name("attn_kv_b"), first, s.nope, true));
      out->value.push_back(load.part(name("attn_kv_b"), first + s.nope, s.value, false));
    }
  }
  return out;
}

void attend_latent(Pass& pass, int layer, const ModelShape& shape, const AttentionWeights& weights, BlockScratch& scratch,
    View<const float, 2> in, View<float, 2> x) {
  Backend& backend = pass.backend();
  const LatentWeights& w = *weights.latent;
  const LatentShape& s = w.shape;
  const int64_t rows = pass.num_rows(), heads = shape.heads, dim = shape.head_dim, query = s.nope + s.rope;
  const View<float, 2> raw(scratch.raw.data, rows, heads * query), k = scratch.k;
  if (w.q_down) {
    const Product down[] = {{w.q_down.get(), nullptr, scratch.latent}, {w.kv_down.get(), nullptr, k}};
    backend.matmul({.x = in, .products = down});
    backend.norm({.x = scratch.latent, .weight = floats(w.q_norm), .eps = kLatentEps, .out = scratch.latent});
    multiply(backend, scratch.latent, *w.q, {}, raw);
  } else {
    const Product both[] = {{w.q.get(), nullptr, raw}, {w.kv_down.get(), nullptr, k}};
    backend.matmul({.x = in, .products = both});
  }
  finish_rows(backend, shape, w, scratch);

  // [rows][heads][dim]: what a head's map makes of its query, then the query's rotated part.
  for (int64_t head = 0; head < heads; ++head)
    multiply(backend, columns<const float>(raw.data, rows, heads * query, head * query, s.nope), *w.key[head], {},
        columns(scratch.q.data, rows, heads * dim, head * dim, s.kv_rank));
  backend.copy_rows({.from = columns<const float>(raw.data, rows * heads, query, s.nope, s.rope),
      .to = columns(scratch.q.data, rows * heads, dim, s.kv_rank, s.rope)});
  rotate(backend, shape, s, scratch, scratch.q.data, heads);

  const View<const float, 3> row(k.data, rows, int64_t(1), dim);
  pass.attend(layer,
      {.q = View<const float, 3>(scratch.q.data, rows, heads, dim),
          .k = row,
          .v = row,
          .out = View<float, 3>(scratch.mixed.data, rows, heads, dim),
          .scale = float(s.scale)});

  const View<float, 2> values(scratch.raw.data, rows, heads * s.value);
  for (int64_t head = 0; head < heads; ++head)
    multiply(backend, columns<const float>(scratch.mixed.data, rows, heads * dim, head * dim, s.kv_rank), *w.value[head], {},
        columns(values.data, rows, heads * s.value, head * s.value, s.value));
  const Product out[] = {{weights.o.get(), nullptr, x}};
  backend.matmul({.x = values, .products = out, .accumulate = true});
}

void store_latent(Pass& pass, int layer, const ModelShape& shape, const AttentionWeights& weights, BlockScratch& scratch,
    View<const float, 2> in) {
  multiply(pass.backend(), in, *weights.latent->kv_down, {}, scratch.k);
  finish_rows(pass.backend(), shape, *weights.latent, scratch);
  const View<const float, 3> row(scratch.k.data, pass.num_rows(), int64_t(1), int64_t(shape.head_dim));
  pass.store(layer, row, row);
}

}
