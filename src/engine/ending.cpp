#include "engine/ending.h"

namespace hunch {

Ending::Ending(const Request& request, Tokens end_ids, const Tokenizer* tokenizer)
    : end_ids_(std::move(end_ids)), stops_(request.stop), min_tokens_(request.sampling.min_tokens) {
  if (tokenizer) detokenizer_.emplace(*tokenizer, request.skip_special_tokens);
}

Ending::Said Ending::take(int32_t id, bool last) {
  Said said;
  if (std::ranges::find(end_ids_, id) != end_ids_.end()) {
    reason_ = FinishReason::Stop, stopped_by_id_ = id;
    said.emitted = false, said.end = true;
    said.text = flush();
    return said;
  }
  if (detokenizer_) {
    const std::string piece = detokenizer_->feed(id);
    // What stands before the least length is no end, nor the beginning of one.
    if (++taken_ < min_tokens_) said.text = piece;
    else if (stops_.feed(piece, said.text)) reason_ = FinishReason::Stop, said.end = true;
  }
  text_ += said.text;
  if (last && !said.end) {
    reason_ = FinishReason::Length;
    said.end = true;
    said.text += flush();
    if (stops_.found() >= 0) reason_ = FinishReason::Stop;
  }
  return said;
}

std::string Ending::flush() {
  if (!detokenizer_) return {};
  std::string rest;
  if (!stops_.feed(detokenizer_->flush(), rest)) stops_.flush(rest);
  text_ += rest;
  return rest;
}

}
