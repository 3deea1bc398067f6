// SHA-256 (FIPS 180-4) of a short text: API keys are compared as digests, so that time tells nothing about them.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace hunch {

std::array<uint8_t, 32> sha256(std::string_view text);

}
