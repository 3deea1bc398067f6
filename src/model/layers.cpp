#include "model/layers.h"

#include <cstring>
#include <numeric>

#include "base/failure.h"
#include "checkpoint/quantise.h"
#include "model/latent_attention.h"
#include "model/rope_frequencies.h"

namespace hunch {
namespace {

constexpr int kMostThreads = 16;               // of a device's host
constexpr int64_t kAtOnce = int64_t(1) << 17;  // weights that a thread converts at a time

}

std::vector<float> WeightLoader::values(const std::string& name) {
  const Tensor* tensor = find_(name);
  if (!tensor) return {};
  size_t count = 1;
  for (const int64_t extent : tensor->shape) count *= extent;
  std::vector<float> out(count, 1.0f / float(tensor->shape.back()));
  if (tensor->data) dequantise_row(tensor->dtype, tensor->data, out.data(), int64_t(count));
  return out;
}

Buffer WeightLoader::vector(const std::string& name) {
  const Tensor* tensor = find_(name);
  if (!tensor) return {};
  row_.resize(std::accumulate(tensor->shape.begin(), tensor->shape.end(), int64_t(1), std::multiplies<>()));
  if (!tensor->data) std::ranges::fill(row_, name.ends_with("norm.weight") ? 1.0f : 0.0f);
  else dequantise_row(tensor->dtype, tensor->data, row_.data(), std::ssize(row_));
  return backend_.constant(row_);
}

OwnedWeight WeightLoader::matrix(const std::string& name) {
  const Tensor* tensor = find_(name);
  if (!tensor) return nullptr;
  const int64_t rows = tensor->shape.front(), columns = tensor->shape.back();
  const DType made = requantise_ && columns % dtype_info(*requantise_).block == 0 ? *requantise_ : tensor->dtype;
  auto weight = !tensor->data ? backend_.random_weight(made, rows, columns, tensor->seed)
      : requantise(*tensor)   ? backend_.load_weight(converted_)
                              : backend_.load_weight(*tensor);
  return count(std::move(weight), name);
}

OwnedWeight WeightLoader::exact_matrix(const std::string& name) {
  const Tensor* tensor = find_(name);
  if (!tensor) return nullptr;
  const bool coarse = dtype_info(tensor->dtype).block > 1 || tensor->dtype == DType::F8_E4M3;
  if (coarse && tensor->data) convert(*tensor, DType::F32);
  const DType made = coarse ? DType::F32 : tensor->dtype;
  auto weight = tensor->data ? backend_.load_weight(coarse ? converted_ : *tensor)
                             : backend_.random_weight(made, tensor->shape.front(), tensor->shape.back(), tensor->seed);
  return count(std::move(weight), name);
}

OwnedWeight WeightLoader::every_second(const std::string& name, int64_t step, bool second) {
  const Tensor* tensor = find_(name);
  HUNCH_CHECK(tensor && tensor->data && tensor->shape.front() % (2 * step) == 0);
  // Scales by blocks of rows would not survive: such a matrix is taken by its values.
  const bool scaled = tensor->dtype == DType::F8_E4M3;
  const int64_t columns = tensor->shape.back();
  const size_t row_bytes = scaled ? columns * sizeof(float) : dtype_bytes(tensor->dtype, columns);
  std::vector<std::byte> rows;
  for (int64_t row = 0; row < tensor->shape.front(); ++row) {
    if ((row / step % 2 == 1) != second) continue;
    rows.resize(rows.size() + row_bytes);
    std::byte* to = rows.data() + rows.size() - row_bytes;
    if (scaled) dequantise_row(*tensor, row, reinterpret_cast<float*>(to));
    else std::memcpy(to, tensor->data + row * row_bytes, row_bytes);
  }
  Tensor half = *tensor;
  if (scaled) half.dtype = DType::F32, half.scales = {};
  half.shape.front() /= 2, half.data = rows.data(), half.bytes = rows.size();
  auto weight = backend_.load_weight(half);
  return count(std::move(weight), name);
}

OwnedWeight WeightLoader::part(const std::string& name, int64_t first, int64_t rows, bool transposed) {
  const Tensor* tensor = find_(name);
  if (!tensor) return nullptr;
  const int64_t columns = tensor->shape.back();
  Tensor made = *tensor;
  made.shape = transposed ? std::vector<int64_t>{columns, rows} : std::vector<int64_t>{rows, columns};
  if (!tensor->data) {
    const DType dtype = requantise_.value_or(tensor->dtype);
    const bool fits = made.shape.back() % dtype_info(dtype).block == 0;
    return count(
        backend_.random_weight(fits ? dtype : DType::F32, made.shape[0], made.shape[1], tensor->seed + uint64_t(first)), name);
  }
  std::vector<std::byte> bytes;
  const bool whole = !tensor->scales.values && !tensor->split.scales;
  const size_t row_bytes = dtype_bytes(tensor->dtype, columns), element = whole ? dtype_bytes(tensor->dtype, 1) : 0;
  if (whole && !transposed) {
    made.data = tensor->data + first * row_bytes, made.bytes = rows * row_bytes;
  } else if (whole && dtype_info(tensor->dtype).block == 1) {
    bytes.resize(rows * row_bytes);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < columns; ++column)
        std::memcpy(
            bytes.data() + (column * rows + row) * element, tensor->data + (first + row) * row_bytes + column * element, element);
  } else {
    made.dtype = DType::F32;
    bytes.resize(rows * columns * sizeof(float));
    auto* to = reinterpret_cast<float*>(bytes.data());
    std::vector<float> values(columns);
    for (int64_t row = 0; row < rows; ++row) {
      dequantise_row(*tensor, first + row, values.data());
      for (int64_t column = 0; column < columns; ++column)
        to[transposed ? column * rows + row : row * columns + column] = values[column];
    }
  }
  if (!bytes.empty()) made.data = bytes.data(), made.bytes = bytes.size(), made.scales = {}, made.split = {};
  return count(backend_.load_weight(requantise(made) ? converted_ : made), name);
}

OwnedWeight WeightLoader::count(OwnedWeight weight, const std::string& name) {
  if (weight) bytes_ += weight->bytes;
  else if (left_out_.empty()) left_out_ = name;
  return weight;
}

Status WeightLoader::status() const {
  if (left_out_.empty()) return {};
  constexpr double kGiB = double(1 << 30);
  return failure(
      "{} has no memory for tensor {}: {:.2f} GiB of weights were loaded before it{}, {:.2f} GiB are free; use "
      "weights of a smaller type (hunch quantize --type q8_0 or q4_0), or end what else runs there",
      backend_.description(), left_out_, double(bytes_) / kGiB,
      requantise_ ? fmt::format(" (a copy in {}, --draft-weights target makes none)", dtype_info(*requantise_).name) : "",
      double(backend_.memory_bytes()) / kGiB);
}

// True if converted_ now holds the tensor in the wanted encoding.
bool WeightLoader::requantise(const Tensor& tensor) {
  const auto type = requantise_;
  if (!type || tensor.dtype == *type || tensor.dtype == DType::MXFP4 || tensor.shape.back() % dtype_info(*type).block != 0)
    return false;
  convert(tensor, *type);
  return true;
}

void WeightLoader::convert(const Tensor& tensor, DType type) {
  const int64_t columns = tensor.shape.back(), rows = tensor.shape.front();
  const size_t to_bytes = dtype_bytes(type, columns);
  converted_bytes_.resize(to_bytes * rows);
  if (!workers_) workers_.emplace(backend_.asynchronous() ? kMostThreads : backend_.threads());
  const int64_t each = std::max<int64_t>(1, kAtOnce / columns);  // rows
  workers_->run((rows + each - 1) / each, [&](int64_t i) {
    std::vector<float> values(columns);
    for (int64_t row = i * each; row < std::min(rows, (i + 1) * each); ++row) {
      dequantise_row(tensor, row, values.data());
      quantise_row(type, values.data(), converted_bytes_.data() + row * to_bytes, columns);
    }
  });
  converted_ = tensor;
  converted_.dtype = type;
  converted_.data = converted_bytes_.data();
  converted_.bytes = converted_bytes_.size();
  converted_.scales = {};
}

bool ExpertWeights::complete() const {
  return router && !owned.empty() && std::ranges::all_of(owned, [](const auto& weight) { return bool(weight); });
}

size_t FeedForwardWeights::idle_bytes() const {
  if (!experts) return 0;
  const size_t all = experts->all.size();
  return experts->bytes / all * (all - experts->per_row);
}

FeedForwardWeights load_feed_forward(WeightLoader& load, const ModelShape& shape, int layer) {
  FeedForwardWeights out;
  const bool experts = shape.has_experts(layer);
  const auto blk = [layer](std::string_view name) { return fmt::format("blk.{}.{}", layer, name); };
  if (!experts || shape.shared_ffn > 0) {
    const auto part = [&](const char* name) {
      return load.matrix(blk(fmt::format("{}{}.weight", name, experts ? "_shexp" : "")));
    };
    out.gate = part("ffn_gate"), out.up = part("ffn_up"), out.down = part("ffn_down");
  }
  if (!experts) return out;
  out.experts = std::make_unique<ExpertWeights>();
  ExpertWeights& e = *out.experts;
  e.router = load.exact_matrix(blk("ffn_gate_inp.weight"));
  e.per_row = shape.experts_per_token, e.normalise = shape.norm_expert_shares;
  e.routing = shape.sigmoid_shares ? Routing::Sigmoid : shape.shares_of_chosen ? Routing::SoftmaxOfChosen : Routing::Softmax;
  e.groups = shape.expert_groups, e.groups_kept = shape.groups_per_token, e.share_scale = float(shape.share_scale);
  e.choice_bias = load.vector(blk("exp_probs_b.bias"));
  e.clamp = {float(shape.gate_limit), float(shape.gate_alpha)};
  e.router_bias = load.vector(blk("ffn_gate_inp.bias"));
  e.gate_bias = load.vector(blk("ffn_gate_exps.bias"));
  e.up_bias = load.vector(blk("ffn_up_exps.bias"));
  e.down_bias = load.vector(blk("ffn_down_exps.bias"));
  const auto row_of = [](const Buffer& all, int64_t row, int64_t width) {
    return floats(all) ? floats(all) + row * width : nullptr;
  };
  const size_t before = load.bytes();
  for (int id = 0; id < shape.num_experts; ++id) {
    const auto part = [&](const char* name) {
      return e.owned.emplace_back(load.matrix(blk(fmt::format("{}.{}.weight", name, id)))).get();
    };
    Expert expert;  // in this order: neighbours in memory are read one after the other
    expert.gate = part("ffn_gate"), expert.up = part("ffn_up"), expert.down = part("ffn_down");
    expert.gate_bias = row_of(e.gate_bias, id, shape.expert_ffn), expert.up_bias = row_of(e.up_bias, id, shape.expert_ffn);
    expert.down_bias = row_of(e.down_bias, id, shape.hidden);
    e.all.push_back(expert);
  }
  e.bytes = load.bytes() - before;
  return out;
}

BlockScratch::BlockScratch(Arena& arena, const ModelShape& shape, int64_t rows) {
  const int64_t attention_dim = int64_t(shape.heads) * shape.head_dim, kv_dim = int64_t(shape.kv_heads) * shape.head_dim;
  q = arena.take<float>(rows, attention_dim);
  k = arena.take<float>(rows, kv_dim);
  v = arena.take<float>(rows, kv_dim);
  mixed = arena.take<float>(rows, attention_dim);
  if (shape.latent.used()) {
    const LatentShape& l = shape.latent;
    latent = arena.take<float>(rows, l.q_rank);
    raw = arena.take<float>(rows, int64_t(shape.heads) * std::max(l.nope + l.rope, l.value));
  }
  if (shape.nsa.used()) branches = arena.take<float>(rows, 3 * shape.heads);
  gate = arena.take<float>(rows, shape.widest_ffn());
  up = arena.take<float>(rows, shape.widest_ffn());
  if (shape.num_experts > 0) {
    logits = arena.take<float>(rows, shape.num_experts);
    shares = arena.take<float>(rows, shape.experts_per_token);
    ids = arena.take<int32_t>(rows, shape.experts_per_token);
    gathered = arena.take<float>(rows, shape.hidden);
    product = arena.take<float>(rows, shape.hidden);
  }
  cos_sin = arena.take<float>(rows, int64_t(shape.rope_dim > 0 ? shape.rope_dim : shape.head_dim) / 2, 2);
}

RopeTable::RopeTable(Backend& backend, const ModelShape& shape) {
  const RopeFrequencies rope = rope_frequencies(shape);
  inv_freq_ = backend.constant(rope.inv_freq);
  pairs_ = std::ssize(rope.inv_freq);
  magnitude_ = rope.magnitude;
}

void RopeTable::angles(Pass& pass, const BlockScratch& scratch) const {
  pass.backend().rope_angles({.positions = pass.positions(),
      .inv_freq = inv_freq_.view<float>(pairs_),
      .magnitude = magnitude_,
      .cos_sin = scratch.cos_sin});
}

void attend(Pass& pass, int layer, const ModelShape& shape, const AttentionWeights& w, BlockScratch& s, View<const float, 2> in,
    View<float, 2> x) {
  if (w.latent) return attend_latent(pass, layer, shape, w, s, in, x);
  Backend& backend = pass.backend();
  const int64_t rows = pass.num_rows(), dim = shape.head_dim;
  const auto heads = [&](View<float, 2> all, int64_t n) { return View<float, 3>(all.data, rows, n, dim); };
  const Product qkv[] = {
      {w.q.get(), floats(w.q_bias), s.q}, {w.k.get(), floats(w.k_bias), s.k}, {w.v.get(), floats(w.v_bias), s.v}};
  backend.matmul({.x = in, .products = qkv});
  backend.ready_heads({.q = heads(s.q, shape.heads),
      .k = heads(s.k, shape.kv_heads),
      .q_norm = floats(w.q_norm),
      .k_norm = floats(w.k_norm),
      .eps = shape.norm_eps,
      .cos_sin = s.cos_sin,
      .pairs = shape.rope_pairs});
  if (w.nsa) multiply(backend, in, *w.nsa->gate, {}, s.branches);
  pass.attend(layer,
      {.q = heads(s.q, shape.heads),
          .k = heads(s.k, shape.kv_heads),
          .v = heads(s.v, shape.kv_heads),
          .out = heads(s.mixed, shape.heads),
          .scale = 1.0f / std::sqrt(float(dim)),
          .sinks = floats(w.sinks),
          .nsa = w.nsa ? w.nsa->layer() : NsaLayer{},
          .gates = s.branches});
  if (w.gate) {  // the queries are spent: their place is free
    multiply(backend, in, *w.gate, {}, s.q);
    backend.gate({.gate = s.q, .up = s.mixed, .out = s.mixed, .sigmoid = true});
  }
  const Product out[] = {{w.o.get(), floats(w.o_bias), x}};
  backend.matmul({.x = s.mixed, .products = out, .accumulate = true});
}

void store_rows(
    Pass& pass, int layer, const ModelShape& shape, const AttentionWeights& w, BlockScratch& s, View<const float, 2> in) {
  if (w.latent) return store_latent(pass, layer, shape, w, s, in);
  const auto heads = [&](View<float, 2> all, int64_t n) { return View<float, 3>(all.data, pass.num_rows(), n, shape.head_dim); };
  const auto k = heads(s.k, shape.kv_heads), v = heads(s.v, shape.kv_heads);
  const Product kv[] = {{w.k.get(), floats(w.k_bias), s.k}, {w.v.get(), floats(w.v_bias), s.v}};
  pass.backend().matmul({.x = in, .products = kv});
  pass.backend().ready_heads({.q = heads(s.q, 0),
      .k = k,
      .k_norm = floats(w.k_norm),
      .eps = shape.norm_eps,
      .cos_sin = s.cos_sin,
      .pairs = shape.rope_pairs});
  pass.store(layer, k, v);
}

void feed_forward(Backend& backend, const FeedForwardWeights& w, BlockScratch& s, View<const float, 2> in, View<float, 2> x,
    int layer, SparseCheck* check) {
  const int64_t rows = in.extent[0];
  if (w.experts) {
    const int64_t width = w.experts->all.front().gate->out_dim;
    const View<float, 2> gate(s.gate.data, rows, width), up(s.up.data, rows, width);
    const auto logits = s.logits.slice(0, rows), shares = s.shares.slice(0, rows);
    const auto ids = s.ids.slice(0, rows);
    multiply(backend, in, *w.experts->router, w.experts->router_bias, logits);
    backend.route({.logits = logits,
        .routing = w.experts->routing,
        .normalise = w.experts->normalise,
        .bias = floats(w.experts->choice_bias),
        .groups = w.experts->groups,
        .groups_kept = w.experts->groups_kept,
        .scale = w.experts->share_scale,
        .ids = ids,
        .shares = shares});
    if (check && check->thins_experts()) check->thin_experts(layer, ids, shares);
    backend.experts({.x = in,
        .ids = ids,
        .shares = shares,
        .experts = w.experts->all,
        .clamp = w.experts->clamp,
        .out = x,
        .gate = gate,
        .up = up,
        .gathered = s.gathered,
        .product = s.product});
  }
  if (!w.gate) return;
  const View<float, 2> gate(s.gate.data, rows, w.gate->out_dim), up(s.up.data, rows, w.gate->out_dim);
  if (!check || !check->thins_channels())
    return backend.feed_forward(
        {.x = in, .gate = w.gate.get(), .up = w.up.get(), .down = w.down.get(), .gate_out = gate, .up_out = up, .out = x});
  const Product both[] = {{w.gate.get(), nullptr, gate}, {w.up.get(), nullptr, up}};
  backend.matmul({.x = in, .products = both});
  check->thin_channels(layer, gate);
  backend.gate({.gate = gate, .up = up, .out = gate});
  const Product down[] = {{w.down.get(), nullptr, x}};
  backend.matmul({.x = gate, .products = down, .accumulate = true});
}

}
