// A body to what an engine can take: prompts as token ids, bad words, stop ids, how it speculates; everything checked against the
// model that can be checked before it runs. Used by Call and by hunch batch.
#pragma once

#include <vector>

#include "api/body.h"
#include "api/chat_prompts.h"
#include "base/result.h"
#include "hunch/hunch.h"

namespace hunch {

struct PreparedBody {
  Request request;              // but its prompt
  std::vector<Tokens> prompts;  // as many as the body has
};

// Moves the prompts of ids out of the body, unless they are to be echoed. max_tokens 0 becomes 1, whose token its reader drops.
// Errors are usage errors; `fault` gets their key.
Result<PreparedBody> prepare_body(Body& body, Engine& engine, const ChatPrompts& chat, BodyFault& fault);

}
