// What tests of whole engines share: the tree's models, prompts, and runs of Step or Engine with everything spelled out.
#pragma once

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "backend/isas.h"
#include "base/random.h"
#include "base/test_results.h"
#include "engine/parts.h"
#include "engine/solo.h"
#include "hunch/hunch.h"

namespace hunch::test {

// The tree: where it was built, or $HUNCH_ROOT where tests were carried.
inline std::string tree_path() {
  const char* carried = std::getenv("HUNCH_ROOT");
  return carried ? carried : HUNCH_ROOT;
}
// GGUF files lie in the tree; folders get their weights from the build: where it put them, or $HUNCH_TINY_MODELS.
inline std::string tiny_path(const std::string& name) {
  if (name.ends_with(".gguf")) return tree_path() + "/models/tiny/" + name;
  const char* carried = std::getenv("HUNCH_TINY_MODELS");
  return (carried ? carried : HUNCH_TINY_MODELS) + ("/" + name);
}
// The name of a model or folder as one of a test, and of a test's parameter.
inline std::string test_name(std::string name) {
  for (char& c : name)
    if (!std::isalnum(uint8_t(c))) c = '_';
  return name;
}
inline constexpr auto param_name = [](const auto& info) { return test_name(info.param); };
// A copy of a tiny GGUF model whose last weights are made of this byte.
inline std::string spoiled_copy(const std::string& name, char byte) {
  const std::string path = testing::TempDir() + "spoiled-" + name;
  std::filesystem::copy_file(tiny_path(name), path, std::filesystem::copy_options::overwrite_existing);
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(-96, std::ios::end) << std::string(96, byte);
  return path;
}
inline std::string wren_path() { return tree_path() + "/models/wren-34m.gguf"; }

// Every family, form of attention and rope scaling that the tree has a tiny model of.
inline const std::vector<std::string>& tiny_models() {
  static const std::vector<std::string> names{"qwen3-tied", "qwen3-untied", "qwen2-tied", "qwen2-window", "llama", "llama-llama3",
      "llama-linear", "llama-yarn", "mistral", "qwen3-moe", "gpt-oss", "deepseek-v3", "deepseek-v2-lite"};
  return names;
}
inline std::vector<std::string> gguf_models() {
  return {"llama-llama3-f16.gguf", "llama-q4_k_m.gguf", "qwen2-yarn-q4_0.gguf", "qwen3-q4_0.gguf", "qwen3-q8_0.gguf",
      "gpt-oss-mxfp4.gguf", "deepseek2-q8_0.gguf"};
}

// Those with natively trained sparse attention: as trained by weights, by a linear map, and with plain means.
inline std::vector<std::string> nsa_models() { return {"nsa-std", "nsa-linear", "nsa-fla"}; }

// Backends that every machine runs.
inline constexpr const char* kHosts[] = {"reference", "cpu"};
// Backends that need hardware which this machine has, or hasn't: "cuda".
inline std::vector<std::string> accelerators() {
  std::vector<std::string> out;
  for (const auto& part : Register<Backend>::all())
    if (part.name != "reference" && part.name != "cpu" && part.make({}).ok()) out.emplace_back(part.name);
  return out;
}

inline std::unique_ptr<Engine> load(EngineOptions options) {
  options.keep_costs = false;  // nothing that a test measured is for anybody else
  return good(Engine::load(options));
}

inline std::unique_ptr<Engine> tiny_engine(
    const std::string& model, const std::string& device = "cpu", int threads = 0, int64_t context_len = 256) {
  return load({.model = tiny_path(model), .device = device, .threads = threads, .context_len = context_len});
}

// Numbers below n from keyed noise: the same on every machine.
class Dice {
 public:
  explicit Dice(uint64_t seed) : key_{.seed = seed} {}
  int below(int n) { return int(uint64_t(noise_bits(key_, NoiseStream::Target, 0, next_++)) * uint64_t(n) >> 32); }

 private:
  NoiseKey key_;
  uint32_t next_ = 0;
};

inline Ints random_prompt(int len, int vocab, uint64_t seed) {
  Dice dice(seed);
  Ints prompt(len);
  for (int32_t& id : prompt) id = dice.below(vocab);
  return prompt;
}

// About `len` tokens: a file of small functions in a user's turn, and the beginning of its copy in the assistant's. The shipped
// model copies well, so sparse drafts are often right.
inline Ints copying_prompt(const Tokenizer& tokenizer, int len, uint64_t seed) {
  static const char* const kVerbs[] = {"scan", "merge", "split", "load", "filter", "render", "select", "update"};
  static const char* const kNouns[] = {
      "worker", "layer", "token", "store", "relay", "buffer", "packet", "route", "stage", "mount"};
  Dice dice(seed);
  const auto noun = [&] { return kNouns[dice.below(10)]; };
  const auto encode = [&](const std::string& text) { return good(tokenizer.encode(text, {.add_bos = false})); };
  const int copied = 150;
  std::string file;
  for (int made = 0; int(encode(file).size()) < len - copied - 40; ++made)
    for (int i = 0; i < (made < len / 200 ? 3 : 1); ++i) {
      const std::string a = noun(), b = noun(), c = noun();
      file += fmt::format(
          "function {0}_{1}({2}, {3}) {{\n  let {1} = {2} + {4};\n  if ({1} > {5}) {{\n    {1} -= {3};\n  }}\n  return "
          "{1};\n}}\n\n",
          kVerbs[dice.below(8)], a, b, c, 1 + dice.below(900), 1 + dice.below(900));
    }
  auto prompt = encode("<|im_start|>user\n```\n" + file + "```\nPrint the full file.<|im_end|>\n<|im_start|>assistant\n```\n");
  const auto copy = encode(file);
  prompt.insert(prompt.end(), copy.begin(), copy.begin() + copied);
  return prompt;
}

inline Request ask(Ints prompt, int64_t max_tokens, double temperature = 0) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  request.sampling = {.temperature = temperature, .top_p = 1.0, .min_p = 0.0, .top_k = 0, .seed = 7};
  request.speculation.proposer = "none";
  request.speculation.rule = "match";
  request.speculation.min_tokens = 4;
  request.speculation.draft_weights = "target";
  return request;
}

// Chains of `chain` guesses and, with `beside`, trees of so many more.
inline void guess(Request& request, std::string_view proposer, int chain, int beside = 0) {
  SpeculationOptions& o = request.speculation;
  o.proposer = proposer, o.num_tokens = chain, o.tree_tokens = beside;
}

// A proposer that a test registers and that needs nothing.
template <class T>
Result<std::unique_ptr<Proposer>> make_proposer(const Proposer::Setup&) {
  return std::unique_ptr<Proposer>(new T);
}

using Streams = std::vector<std::unique_ptr<TokenStream>>;

inline Generation generate(Engine& engine, const Request& request) { return good(engine.generate(request)); }
inline Generation generate_by(std::string_view proposer, Engine& engine, Request request) {
  request.speculation.proposer = proposer;
  return generate(engine, request);
}
inline Generation generate_plain(Engine& engine, const Request& request) { return generate_by("none", engine, request); }

// What runs drafted and kept, all together.
struct Tally {
  void add(const Generation& run) { drafted += run.drafted, accepted += run.accepted; }
  // More than `least` were kept, and not all.
  void expect_kept_and_dropped(const std::string& what = "", int64_t least = 0) const {
    EXPECT_GT(accepted, least) << what;
    EXPECT_LT(accepted, drafted) << what;
  }
  int64_t drafted = 0, accepted = 0;
};

inline Ints plain_stream(Engine& engine, Request request) {
  request.speculation.verify = true;
  return generate_plain(engine, request).tokens;
}

inline const ModelShape& shape_of(Engine& engine) { return engine.parts().model->shape(); }

inline std::unique_ptr<Solo> make_step(Engine& engine, const Request& request) {
  EngineParts& parts = engine.parts();
  return good(Solo::make(parts,
      good(plan_request(request, parts.checkpoint->sampling(), parts.options.max_draft, shape_of(engine).layers)), request));
}

// K and V of entries [0, entries) of a sequence, every layer and head, as fp32 (exact for every KV type).
inline std::vector<float> kv_of(Engine& engine, const Sequence& sequence, int64_t entries) {
  KvStore& store = *engine.parts().store;
  std::vector<float> out(entries * store.layers * store.kv_heads * store.head_dim * 2);
  float* to = out.data();
  for (int layer = 0; layer < store.layers; ++layer)
    for (int head = 0; head < store.kv_heads; ++head)
      for (int64_t entry = 0; entry < entries; ++entry, to += 2 * store.head_dim)
        store.read(layer, head, sequence.pages.view(), entry, to, to + store.head_dim);
  return out;
}
inline std::vector<float> kv_of(Engine& engine, Solo& step, int64_t entries) { return kv_of(engine, step.sequence(), entries); }

}
