// The tokenizer of a checkpoint, whichever file format describes it; checked against the model's vocabulary.
#pragma once

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "text/tokenizer.h"

namespace hunch {

// Errors name `path`, the model.
Result<Tokenizer> load_tokenizer(const Checkpoint&, const std::string& path);

}
