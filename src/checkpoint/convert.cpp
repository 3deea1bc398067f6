// The conversion: plan every tensor's encoding, write keys, then stream the rows through quantise_row.
#include "checkpoint/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numbers>
#include <thread>

#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_writer.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/quantise.h"
#include "checkpoint/tokenizer_keys.h"

namespace hunch {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kChunkElements = 1 << 23;  // 32 MiB of f32 in flight

// llama.cpp's number for "mostly this encoding" (general.file_type).
uint32_t file_type_of(DType type) {
  switch (type) {
    case DType::F32: return 0;
    case DType::F16: return 1;
    case DType::Q4_0: return 2;
    case DType::Q8_0: return 7;
    case DType::Q4_K: return 14;
    case DType::Q5_K: return 16;
    case DType::Q6_K: return 18;
    case DType::BF16: return 32;
    case DType::F8_E4M3: break;  // not an encoding of GGUF
  }
  return 0;
}

struct PlannedTensor {
  const Tensor* tensor = nullptr;
  DType dtype = DType::F32;
  int permuted_heads = 0;  // > 0: rows of that many heads change from halves to neighbours
};

DType encoding_for(const Tensor& tensor, DType asked, std::vector<std::string>& notes) {
  if (tensor.shape.size() < 2) return DType::F32;
  const int64_t row = tensor.shape.back();
  const auto fits = [&](DType type) { return row % dtype_info(type).block == 0; };
  if (fits(asked)) return asked;
  const DType other = fits(DType::Q8_0) ? DType::Q8_0 : DType::F16;
  notes.push_back(fmt::format("{}: {} instead of {}: rows of {} are no multiple of {}", tensor.name, dtype_info(other).name,
                              dtype_info(asked).name, row, dtype_info(asked).block));
  return other;
}

// Architecture "llama" of GGUF rotates neighbours: row h D + 2 i + j is Hugging Face's row h D + j D/2 + i.
int64_t source_row(int64_t row, int64_t head_dim) {
  const int64_t head = row / head_dim, within = row % head_dim;
  return head * head_dim + (within % 2) * (head_dim / 2) + within / 2;
}

// Keys of a Hugging Face model. `arch`: llama, qwen2 or qwen3.
Status add_shape(GgufWriter& out, const ModelShape& s, const std::string& arch) {
  const auto key = [&](std::string_view name) { return fmt::format("{}.{}", arch, name); };
  out.add_u32(key("vocab_size"), uint32_t(s.vocab_size));
  out.add_u32(key("context_length"), uint32_t(s.context_len));
  out.add_u32(key("embedding_length"), uint32_t(s.hidden));
  out.add_u32(key("block_count"), uint32_t(s.layers));
  out.add_u32(key("feed_forward_length"), uint32_t(s.ffn));
  out.add_u32(key("attention.head_count"), uint32_t(s.heads));
  out.add_u32(key("attention.head_count_kv"), uint32_t(s.kv_heads));
  out.add_u32(key("attention.key_length"), uint32_t(s.head_dim));
  out.add_u32(key("attention.value_length"), uint32_t(s.head_dim));
  out.add_f32(key("attention.layer_norm_rms_epsilon"), float(s.norm_eps));
  out.add_u32(key("rope.dimension_count"), uint32_t(s.rope_dim));
  out.add_f32(key("rope.freq_base"), float(s.rope_theta));
  if (s.sliding_window > 0) {
    out.add_u32(key("attention.sliding_window"), uint32_t(s.sliding_window));
    if (!s.window_layer.empty()) out.add_bools(key("attention.sliding_window_pattern"), s.window_layer);
  }
  const RopeScaling& r = s.rope_scaling;
  if (r.kind == RopeScaling::Kind::Linear) {
    out.add_text(key("rope.scaling.type"), "linear");
    out.add_f32(key("rope.scaling.factor"), float(r.factor));
  } else if (r.kind == RopeScaling::Kind::Yarn) {
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
    return Error{fmt::format("{}: {} end-of-text tokens, a GGUF file holds {}", source, ends.size(), std::size(kEnds))};
  for (size_t i = 0; i < ends.size(); ++i) out.add_u32(kEnds[i], uint32_t(ends[i]));
  if (tokenizer.padding_id) out.add_u32("tokenizer.ggml.padding_token_id", uint32_t(*tokenizer.padding_id));
  if (t.add_bos) out.add_bool("tokenizer.ggml.add_bos_token", *t.add_bos);
  if (!t.chat_template.empty()) out.add_text("tokenizer.chat_template", t.chat_template);
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
  for (const Tensor& tensor : in.tensors()) {
    double n = 1;
    for (const int64_t extent : tensor.shape) n *= double(extent);
    elements += n;
  }
  return elements < 1e9 ? fmt::format("{:.0f}M", elements / 1e6) : fmt::format("{:.1f}B", elements / 1e9);
}

Status add_folder_keys(GgufWriter& out, const Checkpoint& in, const std::string& path) {
  const ModelShape& s = in.shape();
  const std::string arch = s.family == "mistral" ? "llama" : s.family;
  const fs::path given = fs::path(path).lexically_normal();
  std::error_code ignored;
  const fs::path folder = fs::is_directory(given, ignored) ? given : given.parent_path();
  const std::string stem = (folder.has_filename() ? folder : folder.parent_path()).filename().string();
  out.add_text("general.architecture", arch);
  out.add_text("general.type", "model");
  out.add_text("general.name", s.name.empty() ? stem : s.name);
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

// The largest magnitude that an encoding holds: its f16 scale times its largest code.
float most_of(DType type) {
  constexpr float kMostF16 = 65504;
  switch (type) {
    case DType::F32:
    case DType::BF16: return std::numeric_limits<float>::max();
    case DType::F16: return kMostF16;
    case DType::Q8_0: return kMostF16 * 127;
    case DType::Q4_0:
    case DType::Q4_K:
    case DType::Q5_K:
    case DType::Q6_K:
    case DType::F8_E4M3: break;
  }
  return kMostF16 * 8;
}

// One chunk of rows, shared by the machine's threads; false where a weight is NaN or larger than the encoding can hold.
bool convert_rows(const PlannedTensor& plan, int64_t first, int64_t count, int64_t row, int64_t head_dim,
                  std::span<std::byte> out) {
  const Tensor& tensor = *plan.tensor;
  const size_t in_bytes = dtype_bytes(tensor.dtype, size_t(row)), out_bytes = dtype_bytes(plan.dtype, size_t(row));
  std::atomic<bool> fits = true;
  const float most = most_of(plan.dtype);
  const auto work = [&](int64_t begin, int64_t end) {
    std::vector<float> values(static_cast<size_t>(row));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t from = plan.permuted_heads ? source_row(first + i, head_dim) : first + i;
      const std::byte* source = tensor.data + size_t(from) * in_bytes;
      std::byte* target = out.data() + size_t(i) * out_bytes;
      if (tensor.dtype == plan.dtype) {  // no detour over f32: the bits stay
        std::memcpy(target, source, in_bytes);
        continue;
      }
      if (tensor.scales.values) dequantise_row(tensor, from, values.data());
      else dequantise_row(tensor.dtype, source, values.data(), row);
      for (const float value : values)
        if (!(std::fabs(value) <= most)) fits = false;
      if (fits) quantise_row(plan.dtype, values.data(), target, row);
    }
  };
  const int64_t workers = std::min<int64_t>(std::max(1u, std::thread::hardware_concurrency()), count);
  std::vector<std::thread> threads;
  for (int64_t w = 1; w < workers; ++w) threads.emplace_back(work, count * w / workers, count * (w + 1) / workers);
  work(0, count / workers);
  for (std::thread& thread : threads) thread.join();
  return fits;
}

Status write_tensor(GgufWriter& out, const PlannedTensor& plan, int64_t head_dim,
                    const std::function<Status(uint64_t)>& after_chunk) {
  const Tensor& tensor = *plan.tensor;
  // A bias that is permuted is a column: rows of one element.
  const int64_t row = plan.permuted_heads && tensor.shape.size() == 1 ? 1 : tensor.shape.back();
  int64_t rows = 1;
  for (const int64_t n : tensor.shape) rows *= n;
  rows /= row;
  const int64_t chunk = std::max<int64_t>(1, kChunkElements / row);
  std::vector<std::byte> buffer;
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t count = std::min(chunk, rows - first);
    buffer.resize(size_t(count) * dtype_bytes(plan.dtype, size_t(row)));
    if (!convert_rows(plan, first, count, row, head_dim, buffer))
      return Error{fmt::format("tensor {} holds NaN or a value too large for {}", tensor.name, dtype_info(plan.dtype).name)};
    HUNCH_OK(out.append(buffer));
    HUNCH_OK(after_chunk(size_t(count) * dtype_bytes(tensor.dtype, size_t(row))));
  }
  return {};
}

// The destination may not be any file of the input.
Status check_destination(const std::string& in, const std::string& out) {
  std::error_code ignored;
  if (!out.ends_with(".gguf")) return usage_error(fmt::format("{}: the output must be named *.gguf", out));
  if (fs::is_directory(out, ignored)) return Error{fmt::format("{}: is a folder", out)};
  if (!fs::exists(out, ignored)) return {};
  const fs::path folder = fs::is_directory(in, ignored) ? fs::path(in) : fs::path(in).parent_path();
  bool same = fs::equivalent(in, out, ignored);
  for (const auto& entry : fs::directory_iterator(folder.empty() ? fs::path(".") : folder, ignored))
    same = same || (entry.path().extension() == ".safetensors" && fs::equivalent(entry.path(), out, ignored));
  if (same) return Error{fmt::format("{}: the output would overwrite the input", out)};
  return {};
}

}  // namespace

Result<ConvertReport> quantise_checkpoint(const std::string& in, const std::string& out, DType type,
                                          const ConvertCallback& progress, const std::atomic<bool>* interrupted) {
  if (!can_quantise(type) || type == DType::F8_E4M3)
    return usage_error(fmt::format("type {} cannot be written", dtype_info(type).name));
  HUNCH_TRY(const auto checkpoint, Checkpoint::open(in));
  HUNCH_OK(check_destination(in, out));
  const ModelShape& shape = checkpoint->shape();
  const bool from_folder = checkpoint->format() != "gguf";
  const bool permute = from_folder && (shape.family == "llama" || shape.family == "mistral");
  if (shape.rope_scaling.kind == RopeScaling::Kind::Llama3 && !permute)
    return Error{fmt::format("{}: rope scaling llama3 can be written for llama and mistral only", in)};

  GgufWriter writer;
  HUNCH_OK(from_folder ? add_folder_keys(writer, *checkpoint, in) : copy_gguf_keys(writer, in));
  writer.add_u32("general.file_type", file_type_of(type));
  writer.add_u32("general.quantization_version", 2);

  ConvertReport report;
  std::vector<PlannedTensor> plan;
  Tensor factors_tensor;
  std::vector<float> factors;
  if (shape.rope_scaling.kind == RopeScaling::Kind::Llama3) {
    factors = llama3_factors(shape);
    factors_tensor = {"rope_freqs.weight",
                      DType::F32,
                      {int64_t(factors.size())},
                      reinterpret_cast<const std::byte*>(factors.data()),
                      factors.size() * 4};
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
  HUNCH_OK(writer.begin(out));
  uint64_t done = 0;
  for (const PlannedTensor& p : plan) {
    const auto after_chunk = [&](uint64_t bytes) -> Status {
      done += bytes;
      if (progress) progress({p.tensor->name, done, report.bytes_in});
      if (interrupted && interrupted->load()) return Error{"interrupted; nothing was written"};
      return {};
    };
    HUNCH_OK(write_tensor(writer, p, shape.head_dim, after_chunk));
  }
  HUNCH_OK(writer.finish());
  report.bytes_out = writer.file_bytes();
  return report;
}

}  // namespace hunch
