// How a chat's reply is told apart into thoughts, words and calls.
#include "api/call_state.h"

namespace hunch {

Status Call::State::settle_reply(const ServedModels&, BodyFault&) { return {}; }

std::unique_ptr<ReplyReader> Call::State::make_reader() const { return nullptr; }

}  // namespace hunch
