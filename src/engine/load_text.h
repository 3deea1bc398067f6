// The tokenizer of a checkpoint, whichever file format describes it; checked against the model's vocabulary.
#pragma once

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "text/tokenizer.h"

namespace hunch {

Result<Tokenizer> load_tokenizer(const Checkpoint&);

}
