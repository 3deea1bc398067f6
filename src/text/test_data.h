// Reading tests/data/text/, for the tests of this folder only.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace hunch::test {

inline std::string read_data(const std::string& name) {
  std::ifstream file(HUNCH_TEST_DATA "/text/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

inline Tokenizer load(const std::string& name, const std::string& config = {}) {
  auto made = Tokenizer::from_json(read_data(name + ".json"), config);
  if (!made.ok()) ADD_FAILURE() << made.error().message;
  return std::move(made).value();
}

inline std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options = {}) {
  auto ids = tokenizer.encode(text, options);
  if (!ids.ok()) ADD_FAILURE() << ids.error().message;
  return ids.ok() ? ids.value() : std::vector<int32_t>{};
}

// The same vocabulary as a GGUF file would hold it.
struct GgufCopy {
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;

  explicit GgufCopy(const std::string& name) {
    const auto json = nlohmann::json::parse(read_data(name + ".json"));
    for (const auto& [token, id] : json["model"]["vocab"].items()) put(id, token, 1);
    for (const auto& token : json["added_tokens"]) put(token["id"], token["content"], token["special"] ? 3 : 4);
    for (const auto& merge : json["model"]["merges"])
      merges.push_back(merge.is_string() ? merge.get<std::string>()
                                         : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
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

}  // namespace hunch::test
