// libFuzzer target: a model's output through every reader of replies; whole and in pieces it must mean the same.
#include <cstdint>

#include "api/reasoning_parser.h"
#include "api/tool_parser.h"
#include "base/check.h"

namespace {

hunch::ReplyReaderPtr reader(int which) {
  using namespace hunch;
  switch (which) {
    case 0: return make_tool_parser("hermes", {"f"});
    case 1: return make_tool_parser("llama3_json", {"f"});
    case 2: return make_call_list_reader();
    case 3: return make_reasoning_parser("qwen3", false, make_tool_parser("hermes", {"f"}));
    case 4: return make_reasoning_parser("deepseek_r1", true, nullptr);
    default: return make_reasoning_parser("openai_gptoss", false, nullptr);
  }
}

std::string meaning(int which, std::string_view text, size_t piece) {
  const auto made = reader(which);
  hunch::ReplyDelta all;
  for (size_t at = 0; at < text.size(); at += piece) made->feed(text.substr(at, piece), all);
  made->finish(all);
  std::string out = all.reasoning + '\x01' + all.content;
  for (size_t i = 0, last = size_t(-1); i < all.calls.size(); last = all.calls[i++].index) {
    HUNCH_CHECK((all.calls[i].index == last) == all.calls[i].name.empty());
    out += all.calls[i].name.empty() ? "" : '\x01' + all.calls[i].name + '\x02';
    out += all.calls[i].arguments;
  }
  return out;
}

}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const int which = data[0] % 6;
  HUNCH_CHECK(meaning(which, text, size) == meaning(which, text, 1 + data[1] % 9));
  return 0;
}
