// Checkpoints over bytes that the caller holds: what fuzz targets and tests open, and the common path under Checkpoint::open.
#pragma once

#include "checkpoint/config.h"

namespace hunch {

// `bytes`: a whole GGUF file that outlives the result; `name` stands in messages.
Result<std::unique_ptr<Checkpoint>> open_gguf_bytes(FileBytes bytes, std::string_view name, bool vocab_only = false);

// `bytes`: one whole safetensors file that outlives the result; `texts`: the files that would stand beside it.
Result<std::unique_ptr<Checkpoint>> open_safetensors_bytes(FileBytes bytes, FolderTexts texts, std::string_view name);

}
