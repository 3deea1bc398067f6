// Learned drafters on the command line: which files to load and of which method each is. A drafter named without a method is
// opened here once to ask it; the engine opens it again to load it.
#pragma once

#include "base/result.h"
#include "hunch/hunch.h"

namespace hunch {

// Methods by the names of other engines: draft-eagle3 (llama.cpp), deepseek_mtp (vLLM), NEXTN (SGLang). Others come back as they
// are.
std::string_view drafter_method_named(std::string_view name);

// `paths` in order, each once; `said`: the method that the user gave for `said_path` (or, if there is only one path, for that),
// empty: none. Errors: files that are no drafters, or of another method than said; two drafters of one method.
Result<std::vector<DrafterOptions>> open_drafters(
    const std::vector<std::string>& paths, std::string_view said, const std::optional<std::string>& said_path);

}
