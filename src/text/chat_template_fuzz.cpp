// libFuzzer target: chat templates from arbitrary bytes, rendered over a small conversation. The input behind a NUL is a content,
// which can never become a special token.

#include "base/check.h"
#include "text/chat_template.h"
#include "text/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t cut = std::min(input.find('\0'), size);
  const auto compiled = hunch::ChatTemplate::compile(input.substr(0, cut));
  if (!compiled.ok()) return 0;
  // A letter that no template here can make of its own bytes: where it comes out, it came from the request.
  std::string content = "\xF3\xA0\x80\x81";
  if (cut < size && !hunch::first_invalid_utf8(input.substr(cut + 1))) content += input.substr(cut + 1);
  const nlohmann::ordered_json call = {{"id", "a"}, {"function", {{"name", "f"}, {"arguments", {{"x", 1.5}, {"y", nullptr}}}}}};
  const nlohmann::ordered_json variables = {
      {"messages",
          {{{"role", "system"}, {"content", content}}, {{"role", "user"}, {"content", content}, {"tool_calls", {call}}}}},
      {"tools", {call, call}}, {"s", content}, {"l", {3, 1, 2, "b", content}}, {"d", {{"a", 1}, {"b", {{"c", content}}}}},
      {"add_generation_prompt", true}};
  const hunch::TemplateLimits limits = {.steps = 20000, .time = std::chrono::seconds(5), .output_bytes = 1 << 16};
  const auto rendered = compiled.value().render(variables, {}, limits, 0);
  if (!rendered.ok()) return 0;
  const hunch::RenderedChat& chat = rendered.value();
  HUNCH_CHECK(chat.text.size() <= limits.output_bytes);
  HUNCH_CHECK(!hunch::first_invalid_utf8(chat.text));
  const bool writes_it =
      input.substr(0, cut).find('\\') != input.npos || input.substr(0, cut).find("\xF3\xA0\x80\x81") != input.npos;
  size_t before = 0;
  for (const auto& [begin, end] : chat.trusted) {
    HUNCH_CHECK(begin >= before && begin < end && end <= chat.text.size());
    if (!writes_it) HUNCH_CHECK(chat.text.substr(begin, end - begin).find("\xF3\xA0\x80\x81") == std::string::npos);
    before = end;
  }
  return 0;
}
