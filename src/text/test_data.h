// Reading models/golden/text/, for the tests of this folder. The vocabulary of "wren" is read from the shipped model by these few
// lines: this folder does not see checkpoint/'s reader.
#pragma once

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/test_results.h"
#include "text/tokenizer.h"

namespace hunch::test {

// The array of strings under a key of the shipped GGUF: key, u32 9 (array), u32 8 (string), u64 count, then length and bytes
// each.
inline std::vector<std::string> shipped_strings(const std::string& key) {
  std::ifstream file(HUNCH_ROOT "/models/wren-34m.gguf", std::ios::binary);
  std::string head(size_t(1) << 20, 0);
  file.read(head.data(), std::streamsize(head.size()));
  const auto number = [&](size_t at) {
    uint64_t value = 0;
    if (at + 8 <= head.size()) std::memcpy(&value, head.data() + at, 8);
    return size_t(value);
  };
  size_t at = head.find(key) + key.size();
  EXPECT_EQ(number(at), (size_t(8) << 32) + 9) << key;
  std::vector<std::string> out(number(at + 8));
  at += 16;
  for (std::string& text : out) {
    text = head.substr(at + 8, number(at));
    at += 8 + text.size();
  }
  return out;
}

inline std::string read_data(const std::string& name) {
  std::ifstream file(HUNCH_ROOT "/models/golden/text/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  std::stringstream text;
  text << file.rdbuf();
  if (name != "wren.json") return text.str();
  auto json = nlohmann::json::parse(text.str());
  auto& model = json["model"];
  size_t id = 0;
  for (const auto& token : shipped_strings("tokenizer.ggml.tokens")) {
    if (id == json["added_tokens"][0]["id"].get<size_t>()) break;
    model["vocab"][token] = id++;
  }
  model["merges"] = shipped_strings("tokenizer.ggml.merges");
  return json.dump();
}

inline Tokenizer load(const std::string& name, const std::string& config = {}) {
  return good(Tokenizer::from_json(read_data(name + ".json"), config));
}

inline Ints encode(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options = {}) {
  return good(tokenizer.encode(text, options));
}

// The same vocabulary as a GGUF file would hold it.
struct GgufCopy {
  std::vector<std::string> tokens, merges;
  Ints types;

  explicit GgufCopy(const std::string& name) {
    const auto json = nlohmann::json::parse(read_data(name + ".json"));
    for (const auto& [token, id] : json["model"]["vocab"].items()) put(id, token, 1);
    for (const auto& token : json["added_tokens"]) put(token["id"], token["content"], token["special"] ? 3 : 4);
    for (const auto& merge : json["model"]["merges"])
      merges.push_back(
          merge.is_string() ? merge.get<std::string>() : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  void put(size_t id, const std::string& token, int32_t type) {
    tokens.resize(std::max(tokens.size(), id + 1));
    types.resize(tokens.size(), 5);
    tokens[id] = token;
    types[id] = type;
  }
  GgufVocab vocab(std::string_view pre) const {
    return {.model = "gpt2", .pre = pre, .tokens = tokens, .token_types = types, .merges = merges};
  }
};

}
