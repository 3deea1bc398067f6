#include "server/api_keys.h"

#include <fstream>

#include "base/failure.h"
#include "server/sha256.h"

namespace hunch {

Status ApiKeys::set(const std::vector<std::string>& keys, const std::string& file) {
  std::vector<std::array<uint8_t, 32>> digests;
  for (const std::string& key : keys) {
    if (key.empty()) return usage_error("--api-key: a key must not be empty");
    digests.push_back(sha256(key));
  }
  if (!file.empty()) {
    std::ifstream in(file);
    if (!in) return usage_error("--api-key-file: cannot be read: {}", file);
    size_t found = 0;
    for (std::string line; std::getline(in, line);) {
      while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
      if (line.empty() || line[0] == '#') continue;
      digests.push_back(sha256(line));
      ++found;
    }
    // A file without keys would open the server to everybody.
    if (found == 0) return usage_error("--api-key-file: there is no key in it: {}", file);
  }
  digests_ = std::move(digests);
  return {};
}

bool ApiKeys::accepts(std::string_view key) const {
  const auto digest = sha256(key);
  unsigned equal = 0;
  for (const auto& known : digests_) {
    unsigned difference = 0;
    for (size_t i = 0; i < digest.size(); ++i) difference |= unsigned(digest[i] ^ known[i]);
    equal |= unsigned(difference == 0);
  }
  return equal != 0;
}

}
