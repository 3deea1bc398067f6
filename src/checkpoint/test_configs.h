// Models of a config.json and named tensors alone, for tests: what follows from them, or why they are refused.
#pragma once

#include "base/test_results.h"
#include "checkpoint/memory_checkpoint.h"
#include "checkpoint/tiny_model.h"

namespace hunch::test {

using Json = nlohmann::json;
using Layers = std::vector<uint8_t>;  // a flag for each

inline Json with(Json config, const char* key, Json value) {
  config[key] = std::move(value);
  return config;
}

inline Result<ModelDescription> described(const Json& config) { return describe_folder({.config = config.dump()}, "m"); }
inline void expect_refused(std::initializer_list<std::pair<Json, const char*>> cases) {
  for (const auto& [config, expected] : cases) {
    const auto message = error_of(described(config));
    expect_part(message, expected);
    EXPECT_TRUE(message.starts_with("m/config.json: ")) << message;
  }
}
inline ModelShape shape_of(const Json& config) { return good(described(config)).shape; }

// `file` outlives the result.
inline Result<std::unique_ptr<Checkpoint>> opened(const tiny::Bytes& file, const Json& config) {
  return open_safetensors_bytes(file, {.config = config.dump()}, "m");
}
inline std::string open_error(const tiny::Tensors& tensors, const Json& config) {
  return error_of(opened(tiny::safetensors(tensors), config));
}

}
