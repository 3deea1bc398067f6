// The safetensors header reader. simdjson checks the JSON and its UTF-8; everything about tensors is checked here.
#include "checkpoint/safetensors.h"

#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <unordered_set>

#include "base/failure.h"
#include "checkpoint/quote.h"

namespace hunch {
namespace {

namespace dom = simdjson::dom;

// Element sizes of types that the format knows but we do not read are not needed: they are refused by name.
std::optional<DType> dtype_of(std::string_view name) {
  if (name == "BF16") return DType::BF16;
  if (name == "F16") return DType::F16;
  if (name == "F32") return DType::F32;
  if (name == "F8_E4M3") return DType::F8_E4M3;
  return {};
}

std::optional<IntegerType> integer_type_of(std::string_view name) {
  using enum IntegerType;
  if (name == "I64") return I64;
  if (name == "I32") return I32;
  if (name == "I8") return I8;
  if (name == "U8") return U8;
  if (name == "BOOL") return Bool;
  return {};
}

// One header entry: {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}. `data_start`, `data_bytes`: the data section.
Result<TensorEntry> parse_entry(std::string_view name, dom::element value, uint64_t data_start, uint64_t data_bytes,
    std::string_view file, IntegerTensors integers) {
  const Failing fail{[&] { return fmt::format("{}: tensor {}", file, quote(name)); }};
  dom::object fields;
  if (value.get(fields)) return fail("its header entry is not an object");
  TensorEntry entry;
  entry.name = name;
  int seen_dtype = 0, seen_shape = 0, seen_offsets = 0;
  uint64_t begin = 0, end = 0, elements = 1;
  for (const auto [key, field] : fields) {
    if (key == "dtype") {
      ++seen_dtype;
      std::string_view type;
      if (field.get(type)) return fail("dtype is not a string");
      if (const auto dtype = dtype_of(type)) entry.dtype = *dtype;
      else if (const auto integer = integer_type_of(type); integer && integers == IntegerTensors::Read) entry.integer = *integer;
      else
        return fail("type {} is not supported (BF16, F16, F32, F8_E4M3{} are)", quote(type),
            integers == IntegerTensors::Read ? "; of whole numbers I64, I32, I8, U8, BOOL" : "");
    } else if (key == "shape") {
      ++seen_shape;
      dom::array dims;
      if (field.get(dims)) return fail("shape is not an array");
      for (const auto dim : dims) {
        uint64_t n = 0;
        if (dim.get(n) || n > uint64_t(INT64_MAX)) return fail("shape holds something that is not a size");
        if (mul_overflows(elements, n, &elements)) return fail("the product of its shape overflows");
        if (entry.shape.size() == 8) return fail("more than 8 dimensions");
        entry.shape.push_back(int64_t(n));
      }
    } else if (key == "data_offsets") {
      ++seen_offsets;
      dom::array offsets;
      if (field.get(offsets) || offsets.size() != 2 || offsets.at(0).get(begin) || offsets.at(1).get(end))
        return fail("data_offsets is not a pair of sizes");
    } else {
      return fail("unknown key {} in its header entry", quote(key));
    }
  }
  if (seen_dtype != 1 || seen_shape != 1 || seen_offsets != 1)
    return fail("its header entry must hold dtype, shape and data_offsets once each");
  if (begin > end) return fail("begins at {} and ends before it, at {}", begin, end);
  if (end > data_bytes) return fail("ends at {}, past the end of the file's {} data bytes", end, data_bytes);
  uint64_t bytes = 0;
  const size_t element = entry.integer == IntegerType::None ? dtype_bytes(entry.dtype, 1) : integer_bytes(entry.integer);
  if (mul_overflows(elements, element, &bytes)) return fail("its size in bytes overflows");
  if (bytes != end - begin) return fail("its shape needs {} bytes, its offsets give {}", bytes, end - begin);
  entry.offset = data_start + begin;
  entry.bytes = bytes;
  return entry;
}

// The data section is covered exactly once.
Status check_cover(const std::vector<TensorEntry>& entries, uint64_t data_start, uint64_t file_bytes, std::string_view file) {
  std::vector<const TensorEntry*> order;
  for (const TensorEntry& entry : entries) order.push_back(&entry);
  std::ranges::sort(order, [](const TensorEntry* a, const TensorEntry* b) {
    return a->offset != b->offset ? a->offset < b->offset : a->bytes < b->bytes;
  });
  uint64_t at = data_start;
  for (const TensorEntry* entry : order) {
    if (entry->offset != at)
      return failure("{}: tensor {}: {} the bytes before it, at offset {}", file, quote(entry->name),
          entry->offset < at ? "overlaps" : "leaves a hole after", entry->offset - data_start);
    at += entry->bytes;
  }
  if (at != file_bytes) return failure("{}: {} bytes after the last tensor belong to none", file, file_bytes - at);
  return {};
}

}

Result<std::vector<TensorEntry>> parse_safetensors(FileBytes file, std::string_view file_name, IntegerTensors integers) {
  const Failing fail{[&] { return file_name; }};
  if (file.size() >= 4 && std::memcmp(file.data(), "GGUF", 4) == 0)
    return fail("holds GGUF data, not safetensors; rename it to .gguf");
  if (file.size() < 8) return fail("not a safetensors file: {} bytes, the header length alone takes 8", file.size());
  uint64_t header_bytes = 0;  // little-endian, as are the machines that this runs on
  std::memcpy(&header_bytes, file.data(), 8);
  if (header_bytes > kMostSafetensorsHeader)
    return fail("not a safetensors file, or damaged: header of {} bytes, at most {}", header_bytes, kMostSafetensorsHeader);
  if (header_bytes > file.size() - 8) return fail("truncated: header of {} bytes in a file of {}", header_bytes, file.size());
  const uint64_t data_start = 8 + header_bytes;
  const char* text = reinterpret_cast<const char*>(file.data()) + 8;
  if (header_bytes == 0 || text[0] != '{') return fail("not a safetensors file: the header does not begin with '{{'");

  dom::parser parser;
  dom::object header;
  const simdjson::padded_string padded(text, header_bytes);
  if (const auto error = parser.parse(padded).get(header))
    return fail("the header is not valid JSON: {}", simdjson::error_message(error));
  std::vector<TensorEntry> entries;
  std::unordered_set<std::string_view> names;  // views into the parser's strings
  for (const auto [key, value] : header) {
    if (!names.insert(key).second) return fail("duplicate key in the header: {}", quote(key));
    if (key == "__metadata__") {
      if (!value.is_object()) return fail("__metadata__ is not an object");
      continue;
    }
    HUNCH_TRY(TensorEntry entry, parse_entry(key, value, data_start, file.size() - data_start, file_name, integers));
    entries.push_back(std::move(entry));
  }
  HUNCH_OK(check_cover(entries, data_start, file.size(), file_name));
  return entries;
}

Result<std::string> canonical_name(std::string_view hf_name) {
  struct Pair {
    std::string_view hf, canonical;
  };
  static constexpr Pair kOutside[] = {{"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}, {"lm_head", "output"}};
  static constexpr Pair kInside[] = {
      {"self_attn.q_proj", "attn_q"},
      {"self_attn.sinks", "attn_sinks"},
      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},
      {"self_attn.o_proj", "attn_output"},
      {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"},
      {"mlp.gate_proj", "ffn_gate"},
      {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},
      {"mlp.gate", "ffn_gate_inp"},
      {"mlp.router", "ffn_gate_inp"},
      {"mlp.experts.gate_up_proj", "ffn_gate_up_exps"},
      {"mlp.experts.down_proj", "ffn_down_exps"},
      {"self_attn.q_a_proj", "attn_q_a"},
      {"self_attn.q_a_layernorm", "attn_q_a_norm"},
      {"self_attn.q_b_proj", "attn_q_b"},
      {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
      {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
      {"self_attn.kv_b_proj", "attn_kv_b"},
      {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
      {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
      {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
      {"eh_proj", "nextn.eh_proj"},
      {"enorm", "nextn.enorm"},
      {"hnorm", "nextn.hnorm"},
      {"shared_head.norm", "nextn.shared_head_norm"},
      {"input_layernorm", "attn_norm"},
      {"post_attention_layernorm", "ffn_norm"},
  };
  const Error unknown{
      fmt::format("unknown tensor: {} (not part of llama, mistral, qwen2, qwen3, qwen3_moe, gpt_oss, deepseek_v2 or deepseek_v3)",
          quote(hf_name))};
  if (hf_name.ends_with("rotary_emb.inv_freq")) return std::string();  // derived from rope_theta, old checkpoints store it

  // Tensors of all experts are parameters of their own, without the suffix of a linear layer.
  bool bare = false;
  std::string_view stem = hf_name, suffix;
  for (const std::string_view name : {".experts.gate_up_proj", ".experts.down_proj", ".self_attn.sinks"})
    for (const Pair& end : {Pair{"", ".weight"}, Pair{"_bias", ".bias"}, Pair{"_blocks", ".blocks"}, Pair{"_scales", ".scales"}})
      if (hf_name.ends_with(end.hf) && hf_name.substr(0, hf_name.size() - end.hf.size()).ends_with(name))
        bare = true, stem = hf_name.substr(0, hf_name.size() - end.hf.size()), suffix = end.canonical;
  if (!bare) {
    const size_t dot = hf_name.rfind('.');
    if (dot == hf_name.npos) return unknown;
    stem = hf_name.substr(0, dot), suffix = hf_name.substr(dot);
    if (suffix != ".weight" && suffix != ".bias" && suffix != ".e_score_correction_bias") return unknown;
  }
  for (const auto& [hf, canonical] : kOutside)
    if (stem == hf) return fmt::format("{}{}", canonical, suffix);

  constexpr std::string_view kLayers = "model.layers.";
  if (!stem.starts_with(kLayers)) return unknown;
  const std::string_view rest = stem.substr(kLayers.size());
  int layer = -1;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
  const size_t digits = end - rest.data();
  if (error != std::errc() || layer < 0 || digits >= rest.size() || rest[digits] != '.') return unknown;
  const std::string_view inside = rest.substr(digits + 1);
  if (inside == "embed_tokens" || inside == "shared_head.head")
    return std::string();  // a prediction layer's copies of the model's
  if (inside == "mlp.gate" && suffix == ".e_score_correction_bias") return fmt::format("blk.{}.exp_probs_b.bias", layer);
  for (const auto& [hf, canonical] : kInside)
    if (inside == hf) return fmt::format("blk.{}.{}{}", layer, canonical, suffix);

  constexpr std::string_view kExperts = "mlp.experts.";
  if (!inside.starts_with(kExperts)) return unknown;
  int expert = -1;
  const char* first = inside.data() + kExperts.size();
  const auto id = std::from_chars(first, inside.data() + inside.size(), expert);
  if (id.ec != std::errc() || expert < 0) return unknown;
  const std::string_view part = inside.substr(id.ptr - inside.data());
  for (const std::string_view name : {"gate", "up", "down"})
    if (part == fmt::format(".{}_proj", name)) return fmt::format("blk.{}.ffn_{}.{}{}", layer, name, expert, suffix);
  return unknown;
}

}
