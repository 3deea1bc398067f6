// The chat page that the server shows at /.
#pragma once

#include <cstdint>
#include <string_view>

namespace hunch {

enum class PageFile : uint8_t { Page, Style, Script };
std::string_view page_text(PageFile file);

}
