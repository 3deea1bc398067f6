#include "draft/medusa_heads.h"

#include <fmt/format.h>

namespace hunch {
namespace {

constexpr int64_t kMostHeads = 32, kMostLayers = 16;

}

Result<MedusaHeads> MedusaHeads::read(const Proposer::Setup& setup) {
  DrafterFile& file = *setup.file;
  MedusaHeads out;
  out.target_ = setup.target;
  out.hidden_ = setup.target->shape().hidden, out.vocab_ = setup.target->shape().vocab_size;
  // Inside a checkpoint of the whole model, or alone.
  if (file.has("medusa_head.0.0.linear.weight")) HUNCH_OK(file.keep_only("medusa_head."));
  HUNCH_OK(file.strip_prefix("medusa_heads."));
  if (file.has("blocks.0.layers.0.weight")) HUNCH_OK(out.read_vllm(setup));
  else HUNCH_OK(out.read_first(setup));
  HUNCH_OK(file.all_consumed());
  out.ones_ = setup.backend->constant(std::vector<float>(out.hidden_, 1.0f));
  return out;
}

// A wrong pairing shows in the shapes of the first tensors, whatever the configuration leaves out.
Status MedusaHeads::check_tensor(DrafterFile& file, const std::string& name, int64_t rows, int64_t columns) const {
  const Tensor* tensor = file.find(name);
  if (!tensor || tensor->shape.size() != 2) return {};  // its loading says so
  const auto& shape = tensor->shape;
  if (shape[1] != columns)
    return file.wrong(name,
        fmt::format("width {}, but the target's hidden size is {}: these heads were made for another model", shape[1], columns));
  if (shape[0] != rows)
    return file.wrong(name,
        fmt::format("{} rows, but the {} {}: these heads were made for another model", shape[0],
            rows == columns ? "target's hidden size is" : "vocabulary has", rows));
  return {};
}

// The layout of Medusa's authors: a sequence of layers per head, the output the last. Their code repeats one layer object, so a
// file may hold it once: later layers that it lacks are the first again.
Status MedusaHeads::read_first(const Proposer::Setup& setup) {
  DrafterFile& file = *setup.file;
  HUNCH_TRY(const auto layers, file.config().integer("medusa_num_layers", 1, kMostLayers));
  HUNCH_TRY(const auto num_heads, file.config().integer("medusa_num_heads", 1, kMostHeads));
  int64_t heads = num_heads.value_or(1);
  while (!num_heads && heads < kMostHeads && file.has(fmt::format("{}.0.linear.weight", heads))) ++heads;
  DrafterTensors load(*setup.backend, file);
  for (int64_t h = 0; h < heads; ++h) {
    Head head;
    for (int64_t j = 0; j < layers.value_or(1); ++j) {
      const auto at = fmt::format("{}.{}.linear.", h, j);
      Layer layer;
      if (j == 0 || file.has(at + "weight")) {
        HUNCH_OK(check_tensor(file, at + "weight", hidden_, hidden_));
        layer.weight = load.matrix(at + "weight", hidden_, hidden_);
        layer.bias = load.vector(at + "bias", hidden_, false);
      }
      head.layers.push_back(std::move(layer));
    }
    const auto output = fmt::format("{}.{}.weight", h, layers.value_or(1));
    HUNCH_OK(check_tensor(file, output, vocab_, hidden_));
    head.output = load.matrix(output, vocab_, hidden_);
    heads_.push_back(std::move(head));
  }
  bytes_ = load.bytes();
  return load.status();
}

// vLLM's layout: an output per head, or one for all (original_lm_head: in the file, else the target's), over the whole vocabulary
// or over the tokens of token_map.
Status MedusaHeads::read_vllm(const Proposer::Setup& setup) {
  DrafterFile& file = *setup.file;
  const JsonConfig& config = file.config();
  const auto same = [&](const char* key, int64_t targets, const char* what) -> Status {
    HUNCH_TRY(const auto value, config.integer(key));
    if (!value || *value == targets) return {};
    return config.wrong(
        key, fmt::format("{}, but the target's {} is {}: these heads were made for another model", *value, what, targets));
  };
  HUNCH_OK(same("hidden_size", hidden_, "hidden size"));
  HUNCH_OK(same("vocab_size", vocab_, "vocabulary"));
  HUNCH_TRY(const auto layers, config.integer("num_hidden_layers", 1, kMostLayers));
  HUNCH_TRY(const auto num_heads, config.integer("num_heads", 1, kMostHeads));
  HUNCH_TRY(const auto bias, config.boolean("medusa_fc_bias"));
  HUNCH_TRY(const auto original, config.boolean("original_lm_head"));
  HUNCH_TRY(const auto truncated, config.integer("truncated_vocab_size", 1, vocab_));
  int64_t heads = num_heads.value_or(1);
  while (!num_heads && heads < kMostHeads && file.has(fmt::format("blocks.{}.layers.0.weight", heads))) ++heads;

  std::string shared;
  if (original.value_or(false) || file.has("lm_head.weight"))
    shared = file.has("lm_head.weight") || !file.has("lm_heads.0.weight") ? "lm_head.weight" : "lm_heads.0.weight";
  // Outputs over all tokens need no map, even where the file has one to cut them by.
  const Tensor* output = file.find(shared.empty() ? "lm_heads.0.weight" : shared);
  const bool whole = !output || (output->shape.size() == 2 && output->shape[0] == vocab_);
  if (whole) file.ignore("token_map");
  else vocab_ = truncated.value_or(vocab_);

  DrafterTensors load(*setup.backend, file);
  for (int64_t h = 0; h < heads; ++h) {
    Head head;
    for (int64_t j = 0; j < layers.value_or(1); ++j) {
      const auto at = fmt::format("blocks.{}.layers.{}.", h, j);
      HUNCH_OK(check_tensor(file, at + "weight", hidden_, hidden_));
      Layer layer{.weight = load.matrix(at + "weight", hidden_, hidden_)};
      if (bias.value_or(false)) layer.bias = load.vector(at + "bias", hidden_);
      head.layers.push_back(std::move(layer));
    }
    const auto own = fmt::format("lm_heads.{}.weight", h);
    if (shared.empty()) {
      HUNCH_OK(check_tensor(file, own, vocab_, hidden_));
      head.output = load.matrix(own, vocab_, hidden_);
    } else {
      file.ignore(own);  // a copy of the one
    }
    heads_.push_back(std::move(head));
  }
  if (output && !shared.empty()) {
    HUNCH_OK(check_tensor(file, shared, vocab_, hidden_));
    shared_ = load.matrix(shared, vocab_, hidden_);
  }
  HUNCH_OK(load.status());
  bytes_ = load.bytes();
  return whole ? Status{} : read_token_map(setup);
}

// token_map holds ids of the target (not differences, as d2t does).
Status MedusaHeads::read_token_map(const Proposer::Setup& setup) {
  DrafterFile& file = *setup.file;
  const int64_t vocab = target_->shape().vocab_size;
  HUNCH_TRY(const std::vector<int64_t> map, file.integers("token_map"));
  if (std::ssize(map) != vocab_)
    return file.wrong("token_map", fmt::format("{} entries for heads over {} tokens", map.size(), vocab_));
  std::vector<int32_t> ids(map.size());
  int64_t before = -1;
  for (int64_t i = 0; i < vocab_; ++i) {
    if (map[i] <= before || map[i] >= vocab)
      return file.wrong(
          "token_map", fmt::format("entry {} is {}: ids must ascend and lie below the target's {}", i, map[i], vocab));
    ids[i] = int32_t(before = map[i]);
  }
  vocabulary_ = setup.backend->constant_ids(ids);
  return {};
}

void MedusaHeads::transform(Backend& backend, int head, View<float, 2> x, View<float, 2> scratch) const {
  View<const float, 2> one(floats(ones_), x.extent[0], hidden_);
  one.stride[0] = 0;  // the same row for all
  const auto& layers = heads_[head].layers;
  for (const Layer& own : layers) {
    const Layer& layer = own.weight ? own : layers.front();
    multiply(backend, x, *layer.weight, layer.bias, scratch);
    backend.gate({.gate = scratch, .up = one, .out = x, .accumulate = true});
  }
}
}
