// A model's conversion: its keys, and which encoding and order of rows every tensor gets. convert_tensors.cpp writes them.
#include "checkpoint/convert.h"

#include <cmath>
#include <numbers>

#include "checkpoint/config.h"
#include "checkpoint/convert_tensors.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/nsa_config.h"
#include "checkpoint/quantise.h"
#include "checkpoint/tokenizer_keys.h"

namespace hunch {
namespace {

using Kind = RopeScaling::Kind;

// Keys of a Hugging Face model. `arch`: llama, qwen2, qwen3 or nsa.
Status add_shape(GgufWriter& out, const ModelShape& s, const std::string& arch) {
  const auto key = [&](std::string_view name) { return fmt::format("{}.{}", arch, name); };
  const std::pair<const char*, int64_t> numbers[] = {{"vocab_size", s.vocab_size}, {"context_length", s.context_len},
      {"embedding_length", s.hidden}, {"block_count", s.layers}, {"feed_forward_length", s.ffn},
      {"attention.head_count", s.heads}, {"attention.head_count_kv", s.kv_heads}, {"attention.key_length", s.head_dim},
      {"attention.value_length", s.head_dim}, {"rope.dimension_count", s.rope_dim}};
  for (const auto& [name, value] : numbers) out.add_u32(key(name), uint32_t(value));
  out.add_f32(key("attention.layer_norm_rms_epsilon"), float(s.norm_eps));
  out.add_f32(key("rope.freq_base"), float(s.rope_theta));
  if (s.sliding_window > 0) {
    out.add_u32(key("attention.sliding_window"), uint32_t(s.sliding_window));
    if (!s.window_layer.empty()) out.add_bools(key("attention.sliding_window_pattern"), s.window_layer);
  }
  if (s.nsa.used()) add_nsa(out, s.nsa);
  const RopeScaling& r = s.rope_scaling;
  if (r.kind == Kind::Linear) {
    out.add_text(key("rope.scaling.type"), "linear");
    out.add_f32(key("rope.scaling.factor"), float(r.factor));
  } else if (r.kind == Kind::Yarn) {
    if (!r.truncate) return Error{"rope scaling yarn with truncate false cannot be written to GGUF"};
    out.add_text(key("rope.scaling.type"), "yarn");
    out.add_f32(key("rope.scaling.factor"), float(r.factor));
    out.add_u32(key("rope.scaling.original_context_length"), uint32_t(r.original_context));
    if (r.beta_fast != 32) out.add_f32(key("rope.scaling.yarn_beta_fast"), float(r.beta_fast));
    if (r.beta_slow != 1) out.add_f32(key("rope.scaling.yarn_beta_slow"), float(r.beta_slow));
    // The reader multiplies by yarn's own factor (gguf_config.cpp).
    const double own = r.factor > 1 ? 0.1 * std::log(r.factor) + 1 : 1, relative = r.attention_factor / own;
    if (std::fabs(relative - 1) > 1e-6) out.add_f32(key("rope.scaling.attn_factor"), float(relative));
  }
  return {};
}

Status add_tokenizer(GgufWriter& out, const Checkpoint& in, std::string_view source) {
  HUNCH_TRY(const GgufTokenizer tokenizer, gguf_tokenizer(in.tokenizer(), in.shape().vocab_size, source));
  const TokenizerSource& t = tokenizer.source;
  out.add_text("tokenizer.ggml.model", t.model);
  out.add_text("tokenizer.ggml.pre", t.pre);
  out.add_texts("tokenizer.ggml.tokens", t.tokens);
  out.add_i32s("tokenizer.ggml.token_type", t.token_types);
  out.add_texts("tokenizer.ggml.merges", t.merges);
  if (t.bos_id) out.add_u32("tokenizer.ggml.bos_token_id", uint32_t(*t.bos_id));
  constexpr const char* kEnds[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
  const auto& ends = in.shape().eos_ids;
  if (ends.size() > std::size(kEnds))
    return failure("{}: {} end-of-text tokens, a GGUF file holds {}", source, ends.size(), std::size(kEnds));
  for (size_t i = 0; i < ends.size(); ++i) out.add_u32(kEnds[i], uint32_t(ends[i]));
  if (tokenizer.padding_id) out.add_u32("tokenizer.ggml.padding_token_id", uint32_t(*tokenizer.padding_id));
  if (t.add_bos) out.add_bool("tokenizer.ggml.add_bos_token", *t.add_bos);
  if (!t.chat_template.empty()) out.add_text("tokenizer.chat_template", t.chat_template);
  if (const std::string tools = tool_template(in.tokenizer()); !tools.empty())
    out.add_text("tokenizer.chat_template.tool_use", tools);
  return {};
}

void add_sampling(GgufWriter& out, const SamplingDefaults& s) {
  if (s.temperature) out.add_f32("general.sampling.temp", float(*s.temperature));
  if (s.top_p) out.add_f32("general.sampling.top_p", float(*s.top_p));
  if (s.min_p) out.add_f32("general.sampling.min_p", float(*s.min_p));
  if (s.top_k) out.add_i32("general.sampling.top_k", *s.top_k);
}

std::string size_label(const Checkpoint& in) {
  double elements = 0;
  for (const Tensor& tensor : in.tensors()) elements += double(elements_of(tensor.shape));
  return elements < 1e9 ? fmt::format("{:.0f}M", elements / 1e6) : fmt::format("{:.1f}B", elements / 1e9);
}

Status add_folder_keys(GgufWriter& out, const Checkpoint& in, const std::string& path) {
  const ModelShape& s = in.shape();
  const std::string arch = s.family == "mistral" ? "llama" : s.family;
  out.add_text("general.architecture", arch);
  out.add_text("general.type", "model");
  out.add_text("general.name", s.name.empty() ? name_of_folder(path) : s.name);
  out.add_text("general.size_label", size_label(in));
  HUNCH_OK(add_shape(out, s, arch));
  add_sampling(out, in.sampling());
  return add_tokenizer(out, in, path);
}

// Everything but what this run decides.
Status copy_gguf_keys(GgufWriter& out, const std::string& path) {
  HUNCH_TRY(const MappedFile file, MappedFile::open(path));
  HUNCH_TRY(const GgufFile gguf, GgufFile::parse(file.bytes(), path));
  for (const std::string_view key : gguf.keys())
    if (key != "general.file_type" && key != "general.quantization_version" && key != "general.alignment")
      out.add_value(key, *gguf.find(key));
  return {};
}

// llama3's rope scaling is a tensor in GGUF: what divides each frequency.
std::vector<float> llama3_factors(const ModelShape& s) {
  const RopeScaling& r = s.rope_scaling;
  std::vector<float> out;
  for (int i = 0; i < s.rope_dim / 2; ++i) {
    const double wave = 2 * std::numbers::pi * std::pow(s.rope_theta, 2.0 * i / s.rope_dim);
    const double blend =
        std::clamp((r.original_context / wave - r.low_freq_factor) / (r.high_freq_factor - r.low_freq_factor), 0.0, 1.0);
    out.push_back(float(1 / ((1 - blend) / r.factor + blend)));
  }
  return out;
}

}

Result<ConvertReport> quantise_checkpoint(const std::string& in, const std::string& out, DType type,
    const ConvertCallback& progress, const std::atomic<bool>* interrupted) {
  if (!can_quantise(type) || type == DType::F8_E4M3 || type == DType::MXFP4)
    return usage_error("type {} cannot be written", dtype_info(type).name);
  HUNCH_TRY(const auto checkpoint, Checkpoint::open(in));
  HUNCH_OK(check_destination(in, out));
  const ModelShape& shape = checkpoint->shape();
  if (shape.latent.used())
    return failure(
        "{}: models with latent attention ({}) cannot be written to GGUF yet; hunch runs them as they are", in, shape.family);
  if (shape.num_experts > 0)
    return failure("{}: models with experts ({}) cannot be written to GGUF yet; hunch runs them as they are", in, shape.family);
  const bool from_folder = checkpoint->format() != "gguf";
  const bool permute = from_folder && (shape.family == "llama" || shape.family == "mistral");
  if (shape.rope_scaling.kind == Kind::Llama3 && !permute && shape.family != "nsa")
    return failure("{}: rope scaling llama3 can be written for llama, mistral and nsa only", in);

  GgufWriter writer;
  HUNCH_OK(from_folder ? add_folder_keys(writer, *checkpoint, in) : copy_gguf_keys(writer, in));
  writer.add_u32("general.file_type", file_type_of(type));
  writer.add_u32("general.quantization_version", 2);

  ConvertReport report;
  std::vector<PlannedTensor> plan;
  Tensor factors_tensor;
  std::vector<float> factors;
  if (shape.rope_scaling.kind == Kind::Llama3) {
    factors = llama3_factors(shape);
    factors_tensor = {
        "rope_freqs.weight",
        DType::F32,
        {std::ssize(factors)},
        reinterpret_cast<const std::byte*>(factors.data()),
        factors.size() * 4,
    };
    plan.push_back({&factors_tensor, DType::F32, 0});
  }
  for (const Tensor& tensor : checkpoint->tensors()) {
    int heads = 0;
    if (permute && tensor.name.find(".attn_q.") != tensor.name.npos) heads = shape.heads;
    if (permute && tensor.name.find(".attn_k.") != tensor.name.npos) heads = shape.kv_heads;
    plan.push_back({&tensor, encoding_for(tensor, type, report.notes), heads});
  }
  for (const PlannedTensor& p : plan) {
    writer.add_tensor(p.tensor->name, p.dtype, p.tensor->shape);
    report.bytes_in += p.tensor->bytes;
  }
  HUNCH_OK(write_planned(writer, out, plan, shape.head_dim, report.bytes_in, progress, interrupted));
  report.bytes_out = writer.file_bytes();
  return report;
}

}
