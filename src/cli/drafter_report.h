// What `hunch info` says of a learned drafter.
#pragma once

#include <nlohmann/json.hpp>

#include "base/result.h"

namespace hunch {

Result<nlohmann::ordered_json> drafter_json(const std::string& path);
std::string drafter_text(const nlohmann::ordered_json& drafter);  // of drafter_json, so that both say the same

}
