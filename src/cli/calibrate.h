// Calibration of sparse verification: exact passes over texts, watched (engine/verify_calibration.h). For `hunch tune`.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/parts.h"

namespace hunch {

// Watches the last kWatched rows of every text in checks of `rows` rows, writes `path`, and returns what was found. anchors: at
// most so many; 0: half of the layers. Texts no longer than the dense length tell nothing of blocks.
inline constexpr int64_t kWatched = 128;
Result<nlohmann::ordered_json> calibrate_verify(EngineParts&, const std::vector<Tokens>& texts, const SparseVerification&,
    int rows, int anchors, const std::string& path, const std::atomic<bool>* interrupted);

// Rows of one text in a watched, exact check; the record grows.
Status watch_text(EngineParts&, std::span<const int32_t> text, const SparseVerification&, int rows, CheckRecord&);

// Share of a row's blocks that a row so far behind it chooses too: [distance], [0] is 0.
std::vector<double> overlap_by_distance(const CheckRecord&);

}
