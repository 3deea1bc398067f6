// ApiKeys: who may use the server. Keys are kept as digests only. Used by Router.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hunch {

class ApiKeys {
 public:
  // Keys given one by one, and a file with a key a line (but for empty lines and # comments); empty: none. An error leaves the
  // keys as they were.
  Status set(const std::vector<std::string>& keys, const std::string& file);
  bool any() const { return !digests_.empty(); }
  // Takes the same time whatever the key is and whichever it equals.
  bool accepts(std::string_view key) const;

 private:
  std::vector<std::array<uint8_t, 32>> digests_;
};

}
