// Where models and prompts come from: paths, files, the standard input; declared in request_flags.h.
#include <sys/stat.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "cli/chat_form.h"
#include "text/unicode.h"

namespace hunch {
namespace {

constexpr std::string_view kShipped = "models/wren-34m.gguf";

Result<std::string> read_stream(std::FILE* stream, const std::string& name) {
  std::string text;
  char block[1 << 16];
  size_t n;
  while ((n = std::fread(block, 1, sizeof block, stream)) > 0) {
    text.append(block, n);
    if (text.size() > kMaxTextBytes)  // also ends endless files such as /dev/zero
      return failure("{}: longer than {} MiB of text", name, kMaxTextBytes >> 20);
  }
  if (std::ferror(stream)) return failure("{}: cannot be read: {}", name, std::strerror(errno));
  return text;
}

Status check_utf8(const std::string& text, const std::string& name) {
  if (const auto at = first_invalid_utf8(text))
    return failure("{}: not UTF-8 text: byte {} (0x{:02x}) begins no character", name, *at, unsigned(uint8_t(text[*at])));
  return {};
}

}

Result<std::string> model_path(const std::optional<std::string>& given) {
  if (given && given->empty()) return usage_error("-m needs a path: a Hugging Face folder or a GGUF file");
  if (given) return *given;
  if (const char* from_environment = std::getenv("HUNCH_MODEL"); from_environment && *from_environment)
    return std::string(from_environment);
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const auto root = program.parent_path().parent_path().parent_path();  // ROOT/build/release/hunch
  const auto shipped = root / kShipped;
  if (!program.empty() && std::filesystem::exists(shipped, ignored)) return shipped.string();
  return usage_error(
      "no model: name one with -m (a Hugging Face folder or a GGUF file) or in HUNCH_MODEL; the shipped one is not at {}",
      shipped.string());
}

std::string unescaped(std::string_view text) {
  constexpr std::string_view kNames = "nrt\\\"'", kMeant = "\n\r\t\\\"'";
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    const std::string_view behind = text.substr(at + 1);
    unsigned code = 0;
    if (text[at] != '\\' || behind.empty()) {
      out += text[at];
    } else if (const size_t name = kNames.find(behind[0]); name != kNames.npos) {
      out += kMeant[name], ++at;
    } else if (behind.size() > 2 && behind[0] == 'x' && std::from_chars(&behind[1], &behind[3], code, 16).ptr == &behind[3]) {
      out += char(code), at += 3;
    } else {
      out += '\\';
    }
  }
  return out;
}

Result<std::string> read_text_file(const std::string& path) {
  if (path == "-") {
    HUNCH_TRY(std::string text, read_stream(stdin, "standard input"));
    HUNCH_OK(check_utf8(text, "standard input"));
    return text;
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) return failure("{}: cannot be opened: {}", path, std::strerror(errno));
  HUNCH_TRY(std::string text, read_stream(file.get(), path));
  HUNCH_OK(check_utf8(text, path));
  return text;
}

Result<Tokens> read_tokens(const Engine& engine, const std::string& path) {
  HUNCH_TRY(const std::string text, read_text_file(path));
  return engine.tokenizer().encode(text);
}

Status keeps(const std::optional<std::string>& read, const std::optional<std::string>& written) {
  std::error_code none;
  if (!read || !written || !std::filesystem::equivalent(*read, *written, none)) return {};
  return usage_error("{}: the output would overwrite the input; name another file", *written);
}

Result<std::string> prompt_text(const PromptFlags& flags) {
  if (flags.text && flags.file) return usage_error("-p and -f exclude each other: the prompt comes from one of them");
  if (!flags.text && !flags.file)
    return usage_error("no prompt: give the text with -p TEXT or a file with -f FILE (-f - reads the standard input)");
  if (flags.system && !flags.chat) return usage_error("--system needs --chat: without it the text is continued as it is");
  const ChatTemplateFlags& chat = flags.chat_template;
  if ((chat.name_or_text || chat.file || chat.kwargs) && !flags.chat)
    return usage_error("a chat template needs --chat: without it the text is continued as it is");
  if (flags.text) {
    std::string text = flags.escape ? unescaped(*flags.text) : *flags.text;
    HUNCH_OK(check_utf8(text, "-p"));
    if (text.empty()) return usage_error("-p: the prompt is empty");
    return text;
  }
  HUNCH_TRY(std::string text, read_text_file(*flags.file));
  if (text.empty()) return failure("{}: the prompt is empty", *flags.file == "-" ? "standard input" : *flags.file);
  return text;
}

Result<Tokens> prompt_ids(const Engine& engine, const PromptFlags& flags, const std::string& text) {
  if (!flags.chat) return engine.tokenizer().encode(text, {.parse_special = true, .add_bos = !flags.no_bos});
  HUNCH_TRY(const ChatForm form, ChatForm::make(engine, flags.chat_template));
  std::vector<ChatTurn> turns;
  if (flags.system) turns.push_back({"system", *flags.system});
  turns.push_back({"user", text});
  return form.prompt(turns);
}

}
