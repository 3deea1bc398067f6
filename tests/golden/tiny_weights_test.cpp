// The weights of the tiny models, which the build draws (tools/make_tiny_models.cpp), are those that transformers was given:
// equal CRC-32 sums in tests/data/models/NAME/weights.json, which tools/make_golden.py wrote together with the goldens.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "engine/test_engines.h"

namespace hunch {
namespace {

std::string crc32(const std::string& bytes) {  // as zlib's
  uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc ^= uint8_t(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0xEDB88320u : 0);
  }
  return fmt::format("{:08x}", ~crc);
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(TinyWeights, AreThoseThatTheGoldensWereMadeFrom) {
  for (const std::string& model : test::tiny_models()) {
    const auto recipe = nlohmann::json::parse(contents(test::tree_path() + "/tests/data/models/" + model + "/weights.json"));
    ASSERT_FALSE(recipe["files"].empty());
    for (const auto& file : recipe["files"]) {
      const std::string path = test::tiny_path(model) + "/" + file["name"].get<std::string>();
      EXPECT_EQ(crc32(contents(path)), file["crc32"]) << path;
    }
  }
}

}  // namespace
}  // namespace hunch
