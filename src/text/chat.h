// A turn of a conversation, as programs collect them. Chat templates make prompts of them (chat_renderer.h).
#pragma once

#include <string>

namespace hunch {

struct ChatTurn {
  std::string role;  // "system", "user", "assistant", and what a template knows besides
  std::string content;
};

}
