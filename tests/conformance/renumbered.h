// Renumbered: copies of a tiny model with other or fewer token numbers, as its draft models.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/test_engines.h"

namespace hunch::test {

inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A copy of a tiny model (of tied BF16 matrices) in which token `id` has the number new_ids[id], or is missing (-1), among
// `columns`. Columns without a token shout: who looks at them chooses them.
inline std::string renumbered(
    const char* model, const char* name, const std::vector<int>& new_ids, int columns, int context_len = 256) {
  namespace fs = std::filesystem;
  using Json = nlohmann::ordered_json;
  const fs::path from = test::tiny_path(model), to = fs::path(testing::TempDir()) / name;
  fs::remove_all(to);
  fs::create_directories(to);
  Json config = Json::parse(text_of(from / "config.json"));
  config["vocab_size"] = columns, config["max_position_embeddings"] = context_len;
  config["eos_token_id"] = columns - 1, config["bos_token_id"] = columns - 1;
  std::ofstream(to / "config.json") << config;

  Json tokenizer = Json::parse(text_of(from / "tokenizer.json"));
  Json vocab = Json::object(), added = Json::array();
  for (const auto& [token, id] : tokenizer["model"]["vocab"].items())
    if (const int now = new_ids[id.get<size_t>()]; now >= 0) vocab[token] = now;
  for (Json& token : tokenizer["added_tokens"])
    if (const int now = new_ids[token["id"].get<size_t>()]; now >= 0) token["id"] = now, added.push_back(token);
  if (!vocab.contains("Ġt")) tokenizer["model"]["merges"] = Json::array();
  tokenizer["model"]["vocab"] = vocab, tokenizer["added_tokens"] = added;
  std::ofstream(to / "tokenizer.json") << tokenizer;

  const std::string weights = text_of(from / "model.safetensors");
  uint64_t header_len = 0;
  std::memcpy(&header_len, weights.data(), 8);
  Json header = Json::parse(weights.substr(8, header_len));
  std::string data;
  for (auto& [tensor, entry] : header.items()) {
    if (tensor == "__metadata__") continue;
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    std::string bytes = weights.substr(8 + header_len + begin, end - begin);
    if (tensor == "model.embed_tokens.weight") {
      const size_t row = bytes.size() / new_ids.size();
      std::string rows(row * size_t(columns), 0);
      for (size_t at = 0; at < rows.size(); at += 2)
        rows[at] = char(0x80), rows[at + 1] = char(at % 4 ? 0x43 : 0xC3);  // 256, -256
      for (size_t id = 0; id < new_ids.size(); ++id)
        if (new_ids[id] >= 0) rows.replace(row * size_t(new_ids[id]), row, bytes, row * id, row);
      bytes = rows;
      entry["shape"][0] = columns;
    }
    entry["data_offsets"] = {data.size(), data.size() + bytes.size()};
    data += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  header_len = text.size();
  std::ofstream(to / "model.safetensors", std::ios::binary)
      << std::string(reinterpret_cast<char*>(&header_len), 8) << text << data;
  return to;
}

inline std::vector<int> same_ids() {
  std::vector<int> ids(260);
  for (int id = 0; id < 260; ++id) ids[id] = id;
  return ids;
}

// 7 does not divide 260.
inline std::vector<int> turned_ids() {
  std::vector<int> ids = same_ids();
  for (int& id : ids) id = (id * 7 + 3) % 260;
  return ids;
}

inline EngineOptions with_draft_model(
    const char* model, const std::string& path, const char* device = "cpu", const char* mode = "same") {
  EngineOptions options{.model = test::tiny_path(model), .device = device, .threads = 1, .context_len = 256};
  options.drafters = {{.method = "draft_model", .path = path, .vocab_mode = mode}};
  return options;
}

inline Request drafting(Ints prompt, int new_tokens, int gamma, double temperature, const char* rule = "match") {
  Request out = test::ask(std::move(prompt), new_tokens, temperature);
  guess(out, "draft_model", gamma);
  out.speculation.rule = rule;
  return out;
}

}
