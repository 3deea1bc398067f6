// What the processor offers to backend `cpu`.
#pragma once

#include <string>
#include <vector>

namespace hunch {

// The instruction sets (--isa) that this machine runs, slowest first.
std::vector<std::string> available_isas();

}
