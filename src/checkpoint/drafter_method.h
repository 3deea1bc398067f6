// Which kind of learned drafter a file holds, by config.json and, where that says only "llama", by the names of its tensors:
// EAGLE's first heads are published as one-layer llama models.
#pragma once

#include <array>

#include "checkpoint/json_config.h"

namespace hunch {

inline constexpr std::array<std::string_view, 5> kDrafterMethods{"draft_model", "medusa", "eagle", "eagle3", "mtp"};

bool is_drafter_method(std::string_view name);

// One of kDrafterMethods; empty where nothing names one. Errors: keys of a wrong type.
Result<std::optional<std::string>> detect_drafter_method(
    const JsonConfig& config, const std::vector<std::string_view>& tensor_names);

// For that case: what was looked at, and what is known.
Error unknown_drafter(const JsonConfig& config);

}
