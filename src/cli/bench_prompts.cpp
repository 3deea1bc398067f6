#include "cli/bench_prompts.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/request_flags.h"

namespace hunch {

Result<std::vector<BenchPrompt>> read_prompts(
    const Tokenizer& tokenizer, const std::string& path, const std::vector<int64_t>& contexts) {
  HUNCH_TRY(const std::string text, read_text_file(path));
  std::vector<BenchPrompt> out;
  int line_number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1, ++line_number;
    if (line.empty()) continue;
    const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object() || !object.contains("text") || !object["text"].is_string())
      return failure("{}: line {} is not a JSON object with a \"text\"", path, line_number);
    BenchPrompt prompt;
    if (object.contains("kind") && object["kind"].is_string()) prompt.kind = object["kind"].get<std::string>();
    if (object.contains("context") && object["context"].is_number_integer()) prompt.context = object["context"].get<int64_t>();
    if (!contexts.empty() && std::ranges::find(contexts, prompt.context) == contexts.end()) continue;
    HUNCH_TRY(prompt.ids, tokenizer.encode(object["text"].get_ref<const std::string&>()));
    out.push_back(std::move(prompt));
  }
  if (out.empty()) return failure("{}: no prompts of the contexts asked for", path);
  return out;
}

std::vector<BenchPrompt> dealt(std::vector<BenchPrompt> prompts, int64_t most, int64_t room) {
  std::vector<std::string> kinds;
  std::map<std::string, std::vector<BenchPrompt>> by_kind;
  for (BenchPrompt& p : prompts) {
    if (!by_kind.contains(p.kind)) kinds.push_back(p.kind);
    by_kind[p.kind].push_back(std::move(p));
  }
  std::vector<BenchPrompt> out;
  for (size_t turn = 0, taken = 1; taken > 0; ++turn) {
    taken = 0;
    for (const std::string& kind : kinds)
      if (turn < by_kind[kind].size()) out.push_back(by_kind[kind][turn]), ++taken;
  }
  if (most > 0 && std::ssize(out) > most) out.resize(most);
  int64_t shortest = room;
  for (const BenchPrompt& p : out) shortest = std::min(shortest, std::ssize(p.ids));
  for (BenchPrompt& p : out) p.ids.erase(p.ids.begin(), p.ids.end() - shortest);
  return out;
}

}
