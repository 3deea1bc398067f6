// hunch info: what a model file says about itself, and what that costs in memory; and what a learned drafter is.
#include "checkpoint/drafter_file.h"
#include "checkpoint/model_info.h"
#include "cli/commands.h"
#include "cli/drafter_report.h"
#include "cli/report.h"
#include "cli/request_flags.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;

std::string_view rope_name(RopeScaling::Kind kind) {
  switch (kind) {
    case RopeScaling::Kind::None: return "none";
    case RopeScaling::Kind::Linear: return "linear";
    case RopeScaling::Kind::Llama3: return "llama3";
    case RopeScaling::Kind::Yarn: return "yarn";
  }
  return "?";
}

ordered_json info_json(const Checkpoint& checkpoint, const std::string& path) {
  const ModelShape& s = checkpoint.shape();
  const ModelInfo info = describe(checkpoint);
  ordered_json out = {{"path", path}, {"format", checkpoint.format()}, {"architecture", s.family}, {"name", s.name},
      {"file_bytes", info.file_bytes}, {"parameters", info.parameters}, {"weight_bytes", info.tensor_bytes},
      {"weight_bytes_per_token", info.weight_bytes_per_token}};
  for (const EncodingShare& share : info.encodings)
    out["encodings"][std::string(dtype_info(share.dtype).name)] = {{"tensors", share.tensors}, {"bytes", share.bytes}};
  out.update({{"vocab_size", s.vocab_size}, {"hidden", s.hidden}, {"ffn", s.has_dense_ffn() ? s.ffn : s.expert_ffn}});
  if (s.num_experts > 0) {
    out.update({{"experts", s.num_experts}, {"experts_per_token", s.experts_per_token}, {"expert_ffn", s.expert_ffn},
        {"expert_layers", std::count(s.expert_layer.begin(), s.expert_layer.begin() + s.layers, 1)}});
    if (s.shared_ffn > 0) out["shared_ffn"] = s.shared_ffn;
  }
  if (s.nsa.used())
    out["nsa"] = {{"variant", s.nsa.variant}, {"cmp_len", s.nsa.cmp_len}, {"cmp_stride", s.nsa.cmp_stride},
        {"sel_block", s.nsa.sel_block}, {"sel_count", s.nsa.sel_count}, {"window", s.nsa.window}};
  if (s.latent.used())
    out["latent"] = {
        {"kv_rank", s.latent.kv_rank},
        {"q_rank", s.latent.q_rank},
        {"nope", s.latent.nope},
        {"rope", s.latent.rope},
        {"value", s.latent.value},
    };
  out.update({{"layers", s.layers}, {"heads", s.heads}, {"kv_heads", s.kv_heads}, {"head_dim", s.head_dim},
      {"context_len", s.context_len}, {"sliding_window", s.sliding_window}, {"rope_theta", s.rope_theta},
      {"rope_scaling", rope_name(s.rope_scaling.kind)}, {"tied_head", s.tied_head}});
  for (DType type : {DType::F32, DType::F16, DType::BF16, DType::I16, DType::Q8_0, DType::F8_E4M3})
    out["kv_bytes_per_token"][std::string(dtype_info(type).name)] = kv_bytes_per_token(s, type);
  // Past this context a decode step reads more KV than weights: there speculation with sparse attention has something to save.
  out["context_where_kv_equals_weights"] = info.parameters > 0 ? ordered_json(balance_len(info, s, DType::BF16)) : ordered_json();
  if (!checkpoint.note().empty()) out["note"] = checkpoint.note();
  out["chat_template"] = !checkpoint.tokenizer().chat_template.empty();
  return out;
}

// From the JSON, so that both outputs say the same.
std::string info_text(const ordered_json& j) {
  NamedLines line{18};
  const auto whole = [&](const char* key) { return j[key].get<int64_t>(); };
  const auto word = [&](const char* key) {  // names in files are anybody's
    std::string text = j[key];
    std::ranges::replace_if(
        text, [](uint8_t c) { return c < ' ' || c == 127; }, '?');
    return text;
  };
  line("model", "{} ({})", word("name").empty() ? "unnamed" : word("name"), word("path"));
  line("architecture", "{}, {} file{}", word("architecture"), word("format"), whole("parameters") == 0 ? " without weights" : "");
  line("shape", "{} layers, hidden {}, ffn {}, {} heads, {} KV heads of {}", whole("layers"), whole("hidden"), whole("ffn"),
      whole("heads"), whole("kv_heads"), whole("head_dim"));
  if (j.contains("experts"))
    line("experts", "{} of width {} in {} layers, {} per token: {} of weights for each", whole("experts"), whole("expert_ffn"),
        whole("expert_layers"), whole("experts_per_token"), bytes_text(j["weight_bytes_per_token"]));
  if (j.contains("latent")) {
    const auto of = [&](const char* key) { return j["latent"][key].get<int>(); };
    line("latent attention", "rows of {} and {} rotated; heads of {} and {}, values of {}", of("kv_rank"), of("rope"), of("nope"),
        of("rope"), of("value"));
  }
  if (j.contains("nsa")) {
    const auto of = [&](const char* key) { return j["nsa"][key].get<int>(); };
    line("sparse attention", "variant {}: rows of {} tokens every {}, {} blocks of {}, window {}",
        j["nsa"]["variant"].get<std::string>(), of("cmp_len"), of("cmp_stride"), of("sel_count"), of("sel_block"), of("window"));
  }
  line("vocabulary", "{} tokens{}", whole("vocab_size"), j["tied_head"] ? ", embedding and head tied" : "");
  line("context", "{} tokens{}, rope theta {:g}, scaling {}", whole("context_len"),
      whole("sliding_window") > 0 ? fmt::format(" (window {})", whole("sliding_window")) : "", j["rope_theta"].get<double>(),
      word("rope_scaling"));
  line.weights(j, 6);
  const auto kv = [&](const char* type) { return j["kv_bytes_per_token"][type].get<double>(); };
  line("KV of one token", "{} bytes as bf16 or f16, {} as i16, {} as q8_0, {} as fp8, {} as f32", kv("bf16"), kv("i16"),
      kv("q8_0"), kv("fp8"), kv("f32"));
  if (whole("parameters") > 0 && !j["context_where_kv_equals_weights"].is_null())
    line("KV = weights", "at {} tokens of context (bf16)", whole("context_where_kv_equals_weights"));
  if (j.contains("note")) line("note", j["note"]);
  line("chat template", j["chat_template"] ? "yes" : "no");
  return line.text;
}

}

Result<int> info_command(Arguments arguments) {
  std::optional<std::string> positional, flag;
  bool json = false;
  FlagSet set("hunch info [MODEL] [--json]", "Architecture, shapes, encodings, bytes of weights and of KV per token.");
  set.positional("MODEL", false, "Hugging Face folder or GGUF file, also of a drafter (default: as for hunch run)", positional);
  set.group("Flags");
  set.text({"-m", "--model"}, "PATH", "the same", flag);
  set.toggle({"--json"}, "print one JSON object", json);
  if (const auto ended = parsed(set, arguments)) return *ended;
  if (positional && flag) return usage_error("the model was named twice: with -m and without");
  HUNCH_TRY(const auto path, model_path(positional ? positional : flag));
  if (is_learned_drafter(path)) {
    HUNCH_TRY(const auto drafter, drafter_json(path));
    return print_and_exit_code(json ? json_line(drafter) + "\n" : drafter_text(drafter));
  }
  HUNCH_TRY(const auto checkpoint, Checkpoint::open(path, /*vocab_only=*/true));
  const ordered_json out = info_json(*checkpoint, path);
  return print_and_exit_code(json ? json_line(out) + "\n" : info_text(out));
}

}
