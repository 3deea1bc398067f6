#include "api/drafter_paths.h"

#include "base/failure.h"
#include "checkpoint/drafter_file.h"

namespace hunch {

std::string_view drafter_method_named(std::string_view name) {
  if (name == "draft-simple" || name == "STANDALONE") return "draft_model";
  if (name == "draft-eagle3" || name == "EAGLE3") return "eagle3";
  if (name == "EAGLE") return "eagle";
  // The names of vLLM's mtp methods carry the target's: it is one method.
  if (name == "draft-mtp" || name == "NEXTN" || name.ends_with("_mtp")) return "mtp";
  return name;
}

Result<std::vector<DrafterOptions>> open_drafters(
    const std::vector<std::string>& paths, std::string_view said, const std::optional<std::string>& said_path) {
  std::vector<DrafterOptions> out;
  for (const std::string& path : paths) {
    if (std::ranges::find(out, path, &DrafterOptions::path) != out.end()) continue;
    const bool meant = said_path ? path == *said_path : paths.size() == 1;
    HUNCH_TRY(const auto file, DrafterFile::open(path, meant && is_drafter_method(said) ? said : std::string_view()));
    for (const DrafterOptions& other : out)
      if (other.method == file->method())
        return usage_error("two drafters of method {}: {} and {}; name one", other.method, other.path, path);
    out.push_back({file->method(), path});
  }
  return out;
}

}
