// hunch report: result files as one HTML page that needs nothing else: no script, no font, no network.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hunch {

// Rows of a result file: JSON lines, a JSON array, or an object with an array "rows". Errors name the line.
Result<std::vector<nlohmann::ordered_json>> result_rows(std::string_view text, const std::string& name);

// The page. Rows that no plot knows still stand in the table at its end.
std::string html_report(const std::vector<nlohmann::ordered_json>& rows, const std::string& title);

}
