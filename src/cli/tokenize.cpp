// hunch tokenize, hunch detokenize: the tokenizer alone, of a model, a vocabulary-only GGUF file, a folder or a tokenizer.json.
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "checkpoint/drafter_file.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/request_flags.h"
#include "engine/load_text.h"
#include "text/detokenizer.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

namespace fs = std::filesystem;

std::string file_text(const fs::path& path) {  // empty where there is none: the tokenizer says what it misses
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

Result<Tokenizer> open_tokenizer(const std::string& path) {
  std::error_code ignored;
  fs::path folder = path;
  const bool named_file = folder.filename() == "tokenizer.json";
  if (named_file) folder = folder.parent_path();
  if (named_file ||
      (fs::is_directory(path, ignored) && !fs::exists(folder / "config.json", ignored) &&
          fs::exists(folder / "tokenizer.json", ignored)))
    return Tokenizer::from_json(file_text(folder / "tokenizer.json"), file_text(folder / "tokenizer_config.json"));
  // Anything else is a model, or a GGUF file with a vocabulary and no tensors.
  auto checkpoint = Checkpoint::open(path, /*vocab_only=*/true);
  if (!checkpoint.ok() && is_learned_drafter(path))
    return failure("{} drafts for another model, whose tokenizer it uses: name that", path);
  if (!checkpoint.ok()) return checkpoint.error();
  return load_tokenizer(**checkpoint, path);
}

// Ids separated by white space or commas, with or without brackets.
Result<Tokens> parse_ids(const std::string& text) {
  Tokens ids;
  for (size_t at = 0; at < text.size();) {
    if (std::string_view(" \t\r\n,[]").find(text[at]) != std::string_view::npos) {
      ++at;
      continue;
    }
    int32_t id = 0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), id);
    if (error != std::errc() || id < 0)
      return usage_error("token ids are whole numbers such as \"1, 2, 3\", not {} at byte {}", excerpt(text.substr(at, 20)), at);
    ids.push_back(id);
    at = end - text.data();
  }
  return ids;
}

struct TextFlags {
  std::optional<std::string> model;
  PromptFlags prompt;
  bool json = false;
};

Result<std::string> input_text(const TextFlags& flags) {
  if (flags.prompt.text && flags.prompt.text->empty()) return std::string();  // no tokens is a fair answer here
  return prompt_text(flags.prompt);
}

Result<std::string> tokenized(const TextFlags& flags) {
  HUNCH_TRY(const std::string text, input_text(flags));
  HUNCH_TRY(const std::string path, model_path(flags.model));
  HUNCH_TRY(const Tokenizer tokenizer, open_tokenizer(path));
  HUNCH_TRY(const auto ids, tokenizer.encode(text, {.parse_special = true, .add_bos = !flags.prompt.no_bos}));
  if (flags.json) return json_line({{"tokens", ids}}) + "\n";
  std::string out;
  for (int32_t id : ids) out += fmt::format("{:>7}  {}\n", id, excerpt(tokenizer.token_bytes(id)));
  return out;
}

Result<std::string> detokenized(const TextFlags& flags) {
  HUNCH_TRY(const std::string text, input_text(flags));
  HUNCH_TRY(const auto ids, parse_ids(text));
  HUNCH_TRY(const std::string path, model_path(flags.model));
  HUNCH_TRY(const Tokenizer tokenizer, open_tokenizer(path));
  for (int32_t id : ids)
    if (id >= tokenizer.vocab_size()) return failure("token id {} is outside the vocabulary of {}", id, tokenizer.vocab_size());
  const std::string out = detokenize(tokenizer, ids, /*skip_special=*/false);
  return flags.json ? json_line({{"text", out}}) + "\n" : out + "\n";
}

Result<int> text_command(Arguments arguments, FlagSet set, Result<std::string> (*make)(const TextFlags&), bool to_tokens) {
  TextFlags flags;
  set.group("Flags");
  set.text({"-m", "--model"}, "PATH", "model, vocabulary-only GGUF file, or folder with a tokenizer.json", flags.model);
  set.text({"-p", "--prompt"}, to_tokens ? "TEXT" : "IDS", to_tokens ? "the text" : "the ids: \"1, 2, 3\"", flags.prompt.text);
  set.text({"-f", "--file"}, "FILE", "the same from a file (-: the standard input)", flags.prompt.file);
  if (to_tokens) set.toggle({"--no-bos"}, "do not begin with the BOS token", flags.prompt.no_bos);
  set.toggle({"--json"}, to_tokens ? "print {\"tokens\": [...]}" : "print {\"text\": \"...\"}", flags.json);
  if (const auto ended = parsed(set, arguments)) return *ended;
  HUNCH_TRY(const std::string out, make(flags));
  return print_and_exit_code(out);
}

}

Result<int> tokenize_command(Arguments arguments) {
  return text_command(arguments,
      FlagSet("hunch tokenize [-m MODEL] (-p TEXT | -f FILE) [--json] [--no-bos]",
          "Prints a token a line, or with --json all ids. Special tokens written in the text are parsed."),
      tokenized, true);
}

Result<int> detokenize_command(Arguments arguments) {
  return text_command(arguments,
      FlagSet("hunch detokenize [-m MODEL] (-p IDS | -f FILE) [--json]", "Prints the text of token ids."), detokenized, false);
}

}
