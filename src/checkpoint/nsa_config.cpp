// Defaults are the publishers': blocks of 64, 16 of them, compressed rows of 32 tokens every 16, a window of
// 512.
#include "checkpoint/nsa_config.h"

#include <nlohmann/json.hpp>

#include "checkpoint/safetensors.h"

namespace hunch {
namespace {

using Kind = NsaShape::Kind;

// Keys of both formats, behind "nsa."; of config.json besides.
constexpr std::pair<std::string_view, int NsaShape::*> kSizes[] = {{"cmp_len", &NsaShape::cmp_len},
    {"cmp_stride", &NsaShape::cmp_stride}, {"sel_block", &NsaShape::sel_block}, {"sel_count", &NsaShape::sel_count},
    {"init_blocks", &NsaShape::init_blocks}, {"local_blocks", &NsaShape::local_blocks}, {"window", &NsaShape::window}};
constexpr std::string_view kWords[] = {"variant", "cmp_kind", "cmp_rope", "kv_sharing", "window_counts_self", "intra_block_pe"};

// `from`: the file, for its errors.
Result<Kind> kind_named(std::string_view name, const auto& from, const char* key) {
  if (name == "mean" || name == "avgpool") return Kind::Mean;
  if (name == "weighted" || name == "weightedpool") return Kind::Weighted;
  if (name == "linear") return Kind::Linear;
  return from.wrong(key, "{} is not supported; mean, weighted and linear are", quote(name));
}

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::Mean: return "mean";
    case Kind::Weighted: return "weighted";
    case Kind::Linear: return "linear";
  }
  return "?";
}

// What the variants say where a file does not. In fla a block is its own compressed row.
NsaShape defaults_of(std::string_view variant, int block) {
  NsaShape s;
  s.variant = variant;
  s.sel_block = block, s.sel_count = 16, s.window = 512;
  if (variant == "fla") {
    s.kind = Kind::Mean, s.rope_before = true;
    s.cmp_len = s.cmp_stride = block;
    s.local_blocks = 1;
  } else {
    s.cmp_len = 32, s.cmp_stride = 16;
    s.block_positions = true;
    s.init_blocks = 1, s.local_blocks = 2;
  }
  return s;
}

Status take(const JsonConfig& config, const std::string& key, int& value) {
  HUNCH_TRY(const auto given, config.integer(key, 0, 1 << 20));
  if (given) value = int(*given);
  return {};
}

// What the object says besides numbers.
Status read_words(const JsonConfig& config, NsaShape& s) {
  HUNCH_TRY(const auto kind, config.text("nsa.cmp_kind"));
  if (kind) { HUNCH_TRY(s.kind, kind_named(*kind, config, "nsa.cmp_kind")); }
  HUNCH_TRY(const auto rope, config.text("nsa.cmp_rope"));
  if (rope && *rope != "before" && *rope != "after_at_block_start")
    return config.wrong("nsa.cmp_rope", "{} is not supported; before and after_at_block_start are", quote(*rope));
  if (rope) s.rope_before = *rope == "before";
  HUNCH_TRY(const auto sharing, config.text("nsa.kv_sharing"));
  if (sharing && *sharing != "shared")
    return config.wrong("nsa.kv_sharing", "{} is not supported: the branches must share one K and V (shared)", quote(*sharing));
  HUNCH_TRY(const auto counts_self, config.boolean("nsa.window_counts_self"));
  if (counts_self && !*counts_self && s.window > 0) ++s.window;
  HUNCH_TRY(const auto positions, config.boolean("nsa.intra_block_pe"));
  if (positions) s.block_positions = *positions;
  return {};
}

Result<NsaShape> read_object(const JsonConfig& config, const std::string& text) {
  const auto given = nlohmann::json::parse(text);
  for (const auto& item : given.items())
    if (std::ranges::find(kWords, item.key()) == std::end(kWords) &&
        std::ranges::find(kSizes, item.key(), [](const auto& size) { return size.first; }) == std::end(kSizes))
      return config.wrong("nsa", "unknown key {}", quote(item.key()));
  HUNCH_TRY(const auto variant, config.text("nsa.variant"));
  if (!variant || (*variant != "std" && *variant != "fla"))
    return config.wrong("nsa.variant", "must be std or fla{}", variant ? ", not " + quote(*variant) : "");
  int block = 64;
  HUNCH_OK(take(config, "nsa.sel_block", block));
  NsaShape s = defaults_of(*variant, block);
  for (const auto& [name, member] : kSizes) HUNCH_OK(take(config, fmt::format("nsa.{}", name), s.*member));
  HUNCH_OK(read_words(config, s));
  return s;
}

}

Result<NsaShape> read_nsa(const JsonConfig& config) {
  HUNCH_TRY(const auto object, config.object("nsa"));
  if (object) return read_object(config, *object);
  int block = 64;
  HUNCH_OK(take(config, "block_size", block));
  const bool std_keys = config.has("kernel_size");
  if (!std_keys && !config.has("block_counts"))
    return config.wrong("nsa", "missing: this model needs an object nsa, or the keys block_size, block_counts and window_size");
  NsaShape s = defaults_of(std_keys ? "std" : "fla", block);
  HUNCH_OK(take(config, "window_size", s.window));
  if (!std_keys) {
    HUNCH_OK(take(config, "block_counts", s.sel_count));
    return s;
  }
  HUNCH_OK(take(config, "kernel_size", s.cmp_len));
  HUNCH_OK(take(config, "kernel_stride", s.cmp_stride));
  HUNCH_OK(take(config, "topk", s.sel_count));
  HUNCH_OK(take(config, "init_blocks", s.init_blocks));
  HUNCH_OK(take(config, "local_blocks", s.local_blocks));
  HUNCH_TRY(const auto kind, config.text("compress_type"));
  if (kind) { HUNCH_TRY(s.kind, kind_named(*kind, config, "compress_type")); }
  return s;
}

Result<NsaShape> read_nsa(const GgufFile& file) {
  HUNCH_TRY(const auto variant, file.text("nsa.variant"));
  if (!variant || (*variant != "std" && *variant != "fla")) return file.wrong("nsa.variant", "must be std or fla");
  NsaShape s;
  s.variant = *variant;
  for (const auto& [name, member] : kSizes) {
    const auto key = fmt::format("nsa.{}", name);
    HUNCH_TRY(const auto given, file.integer(key));
    if (!given) return file.wrong(key, "missing");
    if (*given < 0 || *given > 1 << 20) return file.wrong(key, "{} is out of range", *given);
    s.*member = int(*given);
  }
  HUNCH_TRY(const auto kind, file.text("nsa.cmp_kind"));
  if (!kind) return file.wrong("nsa.cmp_kind", "missing");
  HUNCH_TRY(s.kind, kind_named(*kind, file, "nsa.cmp_kind"));
  HUNCH_TRY(const auto before, file.boolean("nsa.cmp_rope_before"));
  HUNCH_TRY(const auto positions, file.boolean("nsa.intra_block_pe"));
  s.rope_before = before.value_or(false), s.block_positions = positions.value_or(false);
  return s;
}

void add_nsa(GgufWriter& out, const NsaShape& s) {
  out.add_text("nsa.variant", s.variant);
  for (const auto& [name, member] : kSizes) out.add_u32(fmt::format("nsa.{}", name), uint32_t(s.*member));
  out.add_text("nsa.cmp_kind", name_of(s.kind));
  out.add_bool("nsa.cmp_rope_before", s.rope_before);
  out.add_bool("nsa.intra_block_pe", s.block_positions);
}

Status check_nsa(const ModelShape& shape, std::string_view source) {
  const NsaShape& s = shape.nsa;
  if (s.used() != (shape.family == "nsa")) return failure("{}: sparse attention is part of family nsa only", source);
  if (!s.used()) return {};
  const Failing wrong{[&] { return fmt::format("{}: nsa", source); }};
  if (s.sel_block != 16 && s.sel_block != 32 && s.sel_block != 64)
    return wrong("blocks of {} tokens; blocks of 16, 32 and 64 are supported", s.sel_block);
  if (s.cmp_stride < 1 || s.cmp_len < 1 || s.cmp_len > 512)
    return wrong("compressed rows of {} tokens every {}: possible are 1 to 512", s.cmp_len, s.cmp_stride);
  if (s.cmp_len % s.cmp_stride != 0)
    return wrong("a stride of {} does not divide compressed rows of {} tokens", s.cmp_stride, s.cmp_len);
  if (s.sel_block % s.cmp_stride != 0)
    return wrong("a stride of {} does not divide blocks of {} tokens", s.cmp_stride, s.sel_block);
  if (s.sel_count < 1 || s.sel_count > 256) return wrong("{} blocks a query; possible are 1 to 256", s.sel_count);
  if (s.local_blocks < 1) return wrong("local_blocks is 0: a query must read its own block");
  if (s.init_blocks + s.local_blocks > s.sel_count)
    return wrong("{} first and {} last blocks are forced, but a query reads {}", s.init_blocks, s.local_blocks, s.sel_count);
  if (shape.sliding_window > 0) return wrong("a sliding window beside that of its own is not supported");
  if (shape.rope_pairs != RopePairs::Halves) return wrong("only rope over halves is supported");
  if (shape.num_experts > 0) return wrong("mixtures of experts are not supported");
  return {};
}

Result<std::string> nsa_canonical_name(std::string_view name) {
  struct Pair {
    std::string_view from, to;
  };
  static constexpr Pair kOutside[] = {
      {"embedding.weight", "model.embed_tokens.weight"},
      {"model.embeddings.weight", "model.embed_tokens.weight"},
      {"norm.weight", "model.norm.weight"},
      {"lm_head.weight", "lm_head.weight"},
  };
  // XunhaoLai's and fla's words for what the Llama line has too.
  static constexpr Pair kInside[] = {{"nsa.gate.0.", "self_attn.g_proj."}, {"nsa.proj_", "self_attn."}, {"nsa.", "self_attn."},
      {"attn.", "self_attn."}, {"attn_norm.", "input_layernorm."}, {"ffn_norm.", "post_attention_layernorm."},
      {"mlp_norm.", "post_attention_layernorm."}, {"ffn.", "mlp."}};
  static constexpr Pair kOwn[] = {
      {"self_attn.g_proj.weight", "nsa_gate.weight"},
      {"self_attn.compress_key", "nsa_cmp_k.weight"},
      {"self_attn.compress_value", "nsa_cmp_v.weight"},
      {"self_attn.intra_block_pe", "nsa_cmp_pe.weight"},
  };
  for (const auto& [from, to] : kOutside)
    if (name == from) return canonical_name(to);
  std::string_view rest = name;
  if (rest.starts_with("model.")) rest.remove_prefix(std::string_view("model.").size());
  constexpr std::string_view kLayers = "layers.";
  if (!rest.starts_with(kLayers)) return canonical_name(name);
  rest.remove_prefix(kLayers.size());
  const size_t dot = rest.find('.');
  if (dot == rest.npos) return canonical_name(name);
  const std::string_view layer = rest.substr(0, dot);
  std::string inside(rest.substr(dot + 1));
  for (const auto& [from, to] : kInside) {
    if (!inside.starts_with(from)) continue;
    const bool projection = from == "nsa.proj_";
    inside = std::string(to) + inside.substr(from.size());
    if (projection && inside.ends_with(".weight"))  // proj_q.weight: q_proj.weight
      inside = fmt::format("{}_proj.weight", inside.substr(0, inside.size() - std::string_view(".weight").size()));
    break;
  }
  const bool number = !layer.empty() && layer.size() < 6 && layer.find_first_not_of("0123456789") == layer.npos;
  for (const auto& [own, to] : kOwn)
    if (number && inside == own) return fmt::format("blk.{}.{}", layer, to);
  if (inside.starts_with("self_attn.rope.") && inside.ends_with("inv_freq")) return std::string();
  auto found = canonical_name(fmt::format("model.layers.{}.{}", layer, inside));
  if (!found) return failure("unknown tensor: {} (not part of an nsa model)", quote(name));
  return found;
}

}
