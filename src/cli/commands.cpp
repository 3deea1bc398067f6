// The table of subcommands, help and version. Order is the order of the help: what people try first comes first.
#include "cli/commands.h"

#include <fmt/ranges.h>

#include <filesystem>

#include "api/nearest.h"
#include "backend/backend.h"
#include "backend/isas.h"
#include "cli/request_flags.h"
#include "cli/setting_sources.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

constexpr Command kCommands[] = {
    {"run", "continue a text, or answer it with --chat", run_command},
    {"chat", "talk to the model", chat_command},
    {"serve", "answer over HTTP, with OpenAI's API", serve_command},
    {"batch", "answer a file of requests, many at once", batch_command},
    {"demo", "speculation on a long record book, plain and guessed side by side", demo_command},
    {"audit", "run a request both ways and name the first token that differs", audit_command},
    {"bench", "speed, as llama-bench measures it; also bench passes, batch, accept, breakeven", bench_command},
    {"tune", "find the best kept ratio and draft length for your prompts, and remember them", tune_command},
    {"eval", "perplexity over a text, and facts looked up in a long one", eval_command},
    {"report", "result files of bench and eval as one HTML page", report_command},
    {"info", "describe a model", info_command},
    {"quantize", "write a model as a quantised GGUF file", quantize_command},
    {"tokenize", "text to token ids", tokenize_command},
    {"detokenize", "token ids to text", detokenize_command},
    {"doctor", "what this machine offers, what limits it, what to set", doctor_command},
    {"completion", "completion of commands and flags, for bash, zsh or fish", completion_command},
    {"man", "this program's manual page", man_command},
};

constexpr std::string_view kVersion = "0.1.0";

std::string overview() {
  std::string out =
      "hunch: exact self-speculative decoding of long contexts on CPUs. It guesses tokens with the model\n"
      "itself over a few per cent of its KV cache, checks them all in one full pass, and prints exactly\n"
      "what plain decoding would have printed.\n\nusage: hunch COMMAND [flags]\n\nCommands\n";
  for (const Command& c : kCommands) out += fmt::format("  {:<12} {}\n", c.name, c.about);
  out +=
      "\nExamples\n"
      "  hunch demo                                      see it happen in a minute\n"
      "  hunch run -p \"The captain looked at the\" -n 64  continue a text with the shipped model\n"
      "  hunch run -m MODEL -f long.txt --spec self --stats\n"
      "  hunch chat -m MODEL --spec self\n"
      "  hunch audit -m MODEL -f long.txt -n 200         is the stream the same with speculation?\n"
      "\nhunch COMMAND --help lists a command's flags; hunch --version says what was built.\n"
      "Exit codes: 0 done, 1 failure, 2 usage, 130 interrupted (Ctrl-C), 143 terminated.\n";
  return out;
}

}

std::string_view build_commit() {
#ifdef HUNCH_COMMIT
  return HUNCH_COMMIT;
#else
  return "unknown";
#endif
}

// What is written is nothing that is named for another purpose.
Status check_written(Arguments arguments) {
  constexpr std::string_view kWritten[] = {"-o", "--output", "--output-file", "--out", "--trace", "--calibrate-verify"};
  const auto absolute = [](const std::filesystem::path& path) {
    std::error_code none;  // where there is no folder to stand in, paths stay as they are
    const auto whole = std::filesystem::absolute(path, none);
    return (none ? path : whole).lexically_normal();
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const size_t equals = arguments[i].find('=');
    if (std::ranges::find(kWritten, std::string_view(arguments[i]).substr(0, equals)) == std::end(kWritten)) continue;
    const size_t at = equals == arguments[i].npos ? i + 1 : i;
    if (at == arguments.size()) break;
    const std::string written = at > i ? arguments[at] : arguments[i].substr(equals + 1);
    for (size_t j = 0; j < arguments.size(); ++j) {
      const std::string& other = arguments[j];
      if (j == at || written.empty() || written == "-") continue;
      const std::string read =
          other.starts_with('-') && other.find('=') != other.npos ? other.substr(other.find('=') + 1) : other;
      HUNCH_OK(keeps(read, written));
      if (!read.empty() && absolute(read) == absolute(written)) return usage_error("{}: named twice; name another file", written);
    }
  }
  return {};
}

std::optional<Result<int>> parsed(FlagSet& set, Arguments arguments, bool with_environment) {
  std::vector<std::string> all;
  if (with_environment) {
    std::vector<std::string> settings = environment();
    std::erase_if(settings, [](const std::string& s) { return s.starts_with("HUNCH_MODEL="); });  // model_path() reads it
    all = environment_arguments(set, settings, arguments);
  }
  const std::string added = fmt::format("{}", fmt::join(all, " "));
  all.insert(all.end(), arguments.begin(), arguments.end());
  if (const Status status = set.parse(all); !status.ok()) {
    Error error = status.error();
    if (!added.empty()) error.message += fmt::format(" (the environment adds {})", excerpt(added));
    return error;
  }
  if (set.help_wanted()) return print_and_exit_code(set.help());
  HUNCH_OK(check_written(arguments));
  return {};
}

std::string_view program_version() { return kVersion; }

std::span<const Command> commands() { return kCommands; }

std::string version_line() {
#ifdef __clang__
  const std::string compiler = "Clang " __clang_version__;
#else
  const std::string compiler = "GCC " __VERSION__;
#endif
  const char* cuda = Register<Backend>::find("cuda") ? "with CUDA" : "no CUDA";
  return fmt::format(
      "hunch {} ({}; {}; {}; this CPU: {})", kVersion, build_commit(), compiler, cuda, fmt::join(available_isas(), " "));
}

int dispatch(Arguments arguments) {
  if (arguments.empty()) return print_and_exit_code(overview());
  const std::string& first = arguments[0];
  if (first == "--help" || first == "-h") return print_and_exit_code(overview());
  if (first == "--version" || first == "-V") return print_and_exit_code(version_line() + "\n");
  if (first == "--command-names") {  // for completion
    std::string names;
    for (const Command& command : kCommands) names += std::string(command.name) + "\n";
    return print_and_exit_code(names);
  }
  if (first == "help") {
    if (arguments.size() == 1) return print_and_exit_code(overview());
    const std::string help[] = {arguments[1], "--help"};
    return dispatch(help);
  }
  for (const Command& command : kCommands)
    if (command.name == first) {
      Result<int> code = command.run(arguments.subspan(1));
      return code.ok() ? *code : fail(code.error());
    }
  if (first.starts_with('-')) return fail(usage_error("name a command first: hunch run {} ...", excerpt(first)));
  std::vector<std::string_view> names;
  for (const Command& command : kCommands) names.push_back(command.name);
  return fail(usage_error("unknown command {}{}; hunch --help lists them", excerpt(first), did_you_mean(first, names)));
}

}
