// The weights of the tiny models and drafters, which the build draws (models/tiny/make_tiny_models.cpp), are those that
// transformers and the oracle of drafters were given: equal CRC-32 sums in models/tiny/{folders,drafters}/NAME/weights.json,
// which were written together with the goldens.

#include "../conformance/renumbered.h"

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

TEST(TinyWeights, AreThoseThatTheGoldensWereMadeFrom) {
  for (const char* kind : {"folders", "drafters"}) {
    int recipes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(test::tree_path() + "/models/tiny/" + kind)) {
      if (!std::filesystem::exists(entry.path() / "weights.json")) continue;
      const auto recipe = nlohmann::json::parse(test::text_of(entry.path() / "weights.json"));
      ASSERT_FALSE(recipe["files"].empty());
      for (const auto& file : recipe["files"]) {
        const auto path = test::tiny_path(entry.path().filename()) + "/" + file["name"].get<std::string>();
        EXPECT_EQ(crc32(test::text_of(path)), file["crc32"]) << path;
      }
      ++recipes;
    }
    EXPECT_GE(recipes, 9) << kind;
  }
}

}
}
