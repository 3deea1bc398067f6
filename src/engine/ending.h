// Ending: what a request's tokens say, and where they end: an end-of-generation or stop id, a stop text, the token limit. Tokens
// behind the end were never said.
#pragma once

#include <algorithm>

#include "hunch/hunch.h"
#include "text/detokenizer.h"
#include "text/stop_texts.h"

namespace hunch {

class Ending {
 public:
  // `end_ids`: all that end it. `tokenizer` may be null (no text then, and no stop texts).
  Ending(const Request&, Tokens end_ids, const Tokenizer* tokenizer);

  // Whether the next token may be the last: exact where no stop text was given.
  bool may_end(int32_t id, bool last) const {
    return last || !stops_.empty() || std::ranges::find(end_ids_, id) != end_ids_.end();
  }
  struct Said {
    bool emitted = true;  // false: an end id, which is no part of the output
    bool end = false;
    std::string text;  // released by this token
  };
  // Takes the next token; `last`: the limit is reached with it. Not to be called after the end.
  Said take(int32_t id, bool last);

  FinishReason reason() const { return reason_; }
  const std::string& text() const { return text_; }
  // The stop text that ended it; empty: none did.
  std::string stopped_by() const { return stops_.found() < 0 ? "" : stops_.text(stops_.found()); }
  // The end id that ended it; -1: none did.
  int32_t stopped_by_id() const { return stopped_by_id_; }
  // Text that was held back when somebody else ended the request.
  std::string flush();

 private:
  Tokens end_ids_;
  std::optional<Detokenizer> detokenizer_;
  StopTexts stops_;
  int64_t min_tokens_, taken_ = 0;
  std::string text_;
  int32_t stopped_by_id_ = -1;
  FinishReason reason_ = FinishReason::Interrupted;
};

}
