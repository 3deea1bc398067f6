// make_tiny_models RECIPES... OUT: writes the tiny models and drafters that the tests load, a folder OUT/NAME for each
// RECIPES/NAME/weights.json, with what else lies beside the recipe. The build runs it. Same bytes as
// models/golden/tiny_weights.py on every machine: no arithmetic here rounds, but for one conversion to fp32 and one to the stored
// type. models/tiny/README.md gives the recipe's fields.
#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/half.h"

namespace hunch {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Output `index` of SplitMix64 (Steele et al., OOPSLA 2014): the sum of its four 16-bit parts, less the mean of such sums.
int64_t noise(uint64_t seed, uint64_t index) {
  uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return int64_t((z & 0xFFFF) + (z >> 16 & 0xFFFF) + (z >> 32 & 0xFFFF) + (z >> 48)) - 2 * 0xFFFF;
}

template <typename T>
void append(std::string& out, T value) {  // little-endian, as every machine that builds this is
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

// Element n of a tensor of whole numbers or of truth values (an EAGLE-3 drafter's vocabulary): nothing is drawn for it.
void append_counted(std::string& out, const std::string& dtype, int64_t n, int64_t a, int64_t b) {
  if (dtype == "I64") return append(out, n * a / b);
  const auto below = [&](int64_t end) { return (end * a + b - 1) / b; };  // how many floor(m b / a) lie below `end`
  append(out, uint8_t(below(n + 1) > below(n)));
}

// One safetensors file, laid out as the package `safetensors` does it: elements numbered from `drawn` on, over all files.
std::string make_file(const Json& file, uint64_t seed, const std::string& weights, uint64_t& drawn) {
  std::string header = R"({"__metadata__":{"format":"pt"})", data;
  for (const Json& tensor : file["tensors"]) {
    const auto mean = tensor[2].get<int64_t>(), step = tensor[3].get<int64_t>();
    const std::string kind = tensor.size() > 4 ? tensor[4].get<std::string>() : "";
    const bool counted = kind == "I64" || kind == "BOOL";
    const std::string dtype = counted || kind == "U8" ? kind : weights;
    const uint64_t first = kind == "FROM" ? tensor[5].get<uint64_t>() : drawn;
    const int64_t diagonal = kind == "DIAG" ? tensor[5].get<int64_t>() : 0;
    const uint64_t columns = tensor[1].back();
    uint64_t count = 1;
    for (const Json& extent : tensor[1]) count *= extent.get<uint64_t>();
    const size_t begin = data.size();
    for (uint64_t i = 0; i < count; ++i) {
      if (counted) {
        append_counted(data, dtype, int64_t(i), mean, step);
        continue;
      }
      if (kind == "U8") {
        append(data, uint8_t(mean + (noise(seed, first + i) + 2 * 0xFFFF) % step));
        continue;
      }
      const int64_t more = i / columns == i % columns ? diagonal : 0;
      const int64_t units = (mean + more) * (1 << 24) + step * noise(seed, first + i);  // below 2^53
      const float value = float(double(units) * 0x1p-32);
      if (dtype == "BF16") append(data, f32_to_bf16(value));
      else if (dtype == "F16") append(data, f32_to_f16(value));
      else append(data, value);
    }
    if (!counted && kind != "FROM") drawn += count;
    header += fmt::format(R"(,{}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", tensor[0].dump(), dtype, tensor[1].dump(),
                          begin, data.size());
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string out;
  append(out, uint64_t(header.size()));
  return out + header + data;
}

void make_model(const fs::path& from, const fs::path& to) {
  const Json recipe = Json::parse(std::ifstream(from / "weights.json"));
  fs::create_directories(to);
  const auto copy_from = [&](const fs::path& folder) {
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.path().filename() != "weights.json")
        fs::copy_file(entry, to / entry.path().filename(), fs::copy_options::overwrite_existing);
  };
  if (recipe.contains("rest")) copy_from(from.parent_path() / recipe["rest"].get<std::string>());
  copy_from(from);
  uint64_t drawn = 0;
  for (const Json& file : recipe["files"]) {
    std::ofstream out(to / file["name"].get<std::string>(), std::ios::binary);
    out.exceptions(std::ios::failbit | std::ios::badbit);
    const std::string bytes = make_file(file, recipe["seed"], recipe["dtype"], drawn);
    out.write(bytes.data(), std::streamsize(bytes.size()));
    out.close();
  }
}

}  // namespace
}  // namespace hunch

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: make_tiny_models RECIPES... OUT\n");
    return 2;
  }
  try {
    for (int i = 1; i + 1 < argc; ++i)
      for (const auto& entry : std::filesystem::directory_iterator(argv[i]))
        if (std::filesystem::exists(entry.path() / "weights.json"))
          hunch::make_model(entry.path(), argv[argc - 1] / entry.path().filename());
  } catch (const std::exception& e) {
    fmt::print(stderr, "make_tiny_models: {}\n", e.what());
    return 1;
  }
  return 0;
}
