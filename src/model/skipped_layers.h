// Which layers draft passes leave out (Model::forward, `skipped`): as many as asked for, spread evenly, or those named.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hunch {

inline constexpr int kKeptEnds = 2;  // layers at either end that a bare number never takes: they carry most

// "2": so many layers; "3,5" or "3,": these, counted from 0; "" or "0": none, an empty list. Else a byte a layer, 1 where it is
// left out. Errors (usage): no such form; more than the model can spare; a layer that it does not have; no layer left.
Result<std::vector<uint8_t>> skipped_layers(std::string_view text, int layers);

}
