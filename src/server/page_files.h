// The files of the chat page (src/server/page), which the build turns into bytes of the program.
#pragma once

#include <span>
#include <string_view>

namespace hunch {

struct PageFile {
  std::string_view name, body;  // "page.js"
};
std::span<const PageFile> page_files();

}  // namespace hunch
