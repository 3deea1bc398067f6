#include "engine/ending.h"

#include <algorithm>

namespace hunch {

Ending::Ending(const Request& request, const std::vector<int32_t>& end_ids, const Tokenizer* tokenizer)
    : end_ids_(request.stop_ids) {
  if (!request.ignore_eos) end_ids_.insert(end_ids_.end(), end_ids.begin(), end_ids.end());
  if (tokenizer) detokenizer_.emplace(*tokenizer);
}

Ending::Said Ending::take(int32_t id, bool last) {
  Said said;
  if (std::find(end_ids_.begin(), end_ids_.end(), id) != end_ids_.end()) {
    reason_ = FinishReason::Stop;
    said.emitted = false, said.end = true;
    said.text = flush();
    return said;
  }
  if (detokenizer_) said.text = detokenizer_->feed(id);
  text_ += said.text;
  if (last) {
    reason_ = FinishReason::Length;
    said.end = true;
    said.text += flush();
  }
  return said;
}

std::string Ending::flush() {
  if (!detokenizer_) return {};
  std::string rest = detokenizer_->flush();
  text_ += rest;
  return rest;
}

}  // namespace hunch
