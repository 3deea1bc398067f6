// hunch completion and hunch man. Both ask the commands themselves, so that neither can fall behind the flags.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/terminal.h"

namespace hunch {
namespace {

struct Shell {
  std::string_view name, script;
};
constexpr Shell kShells[] = {
    {"bash", R"sh(_hunch() {
  local word=${COMP_WORDS[COMP_CWORD]} words=
  if [ "$COMP_CWORD" = 1 ]; then words=$(hunch --command-names)
  elif [[ $word == -* ]]; then words=$(hunch "${COMP_WORDS[1]}" --flag-names 2>/dev/null)
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -o default -F _hunch hunch
)sh"},
    {"zsh", R"zsh(#compdef hunch
_hunch() {
  if (( CURRENT == 2 )); then compadd -- ${(f)"$(hunch --command-names)"}
  elif [[ $words[CURRENT] == -* ]]; then compadd -- ${(f)"$(hunch $words[2] --flag-names 2>/dev/null)"}
  else _files
  fi
}
compdef _hunch hunch
)zsh"},
    {"fish", R"sh(complete -c hunch -n __fish_use_subcommand -f -a '(hunch --command-names)'
complete -c hunch -n 'not __fish_use_subcommand; and string match -q -- "-*" (commandline -ct)' -f \
  -a '(hunch (commandline -opc)[2] --flag-names 2>/dev/null)'
)sh"},
};

// What a command prints for --help, which goes to the standard output by its own hand: that is a file meanwhile.
std::string help_of(const Command& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::tmpfile(), std::fclose);
  const int output = file ? dup(STDOUT_FILENO) : -1;
  if (output < 0 || dup2(fileno(file.get()), STDOUT_FILENO) < 0) return {};
  const std::string help[] = {"--help"};
  HUNCH_CHECK(command.run(Arguments(help)).ok());
  dup2(output, STDOUT_FILENO);
  close(output);
  std::rewind(file.get());
  std::string text(size_t(1) << 16, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  return text;
}

// Text for roff: backslashes doubled, hyphens that stay hyphens, no line that begins as a request.
std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
    if (c == '\\') out += "\\e";
    else if (c == '-') out += "\\-";
    else out += c;
  }
  return out;
}

}

Result<int> completion_command(Arguments arguments) {
  std::optional<std::string> name;
  FlagSet set("hunch completion bash|zsh|fish",
      "Prints what makes a shell complete hunch's commands and flags: eval \"$(hunch completion bash)\" in ~/.bashrc, "
      "hunch completion zsh > a file _hunch in $fpath, hunch completion fish > ~/.config/fish/completions/hunch.fish.");
  set.positional("SHELL", true, "bash, zsh or fish", name);
  if (const auto ended = parsed(set, arguments)) return *ended;
  for (const Shell& shell : kShells)
    if (shell.name == *name) return print_and_exit_code(shell.script);
  return usage_error(fmt::format("no completion for {}: there is bash, zsh and fish", *name));
}

Result<int> man_command(Arguments arguments) {
  FlagSet set("hunch man", "Prints the manual page: hunch man | man -l -, or into share/man/man1/hunch.1.");
  if (const auto ended = parsed(set, arguments)) return *ended;
  auto page = fmt::format(
      ".TH HUNCH 1 \"\" \"{}\"\n.SH NAME\nhunch \\- exact self\\-speculative decoding of long contexts\n.SH SYNOPSIS\n"
      ".B hunch\nCOMMAND [flags]\n.SH DESCRIPTION\nGenerates text with a language model. It guesses tokens with the model itself "
      "over a few per cent of its KV cache, checks them all in one full pass, and prints exactly what plain decoding would have "
      "printed.\n.SH COMMANDS\n",
      roff(version_line().substr(0, version_line().find(" ("))));
  for (const Command& command : commands()) page += fmt::format(".TP\n.B {}\n{}\n", roff(command.name), roff(command.about));
  for (const Command& command : commands()) {
    if (command.run == man_command) continue;
    std::string title = "hunch " + std::string(command.name);
    std::transform(title.begin(), title.end(), title.begin(), [](unsigned char c) { return char(std::toupper(c)); });
    page += fmt::format(".SH {}\n.nf\n{}.fi\n", roff(title), roff(help_of(command)));
  }
  page += ".SH EXIT STATUS\n0 done, 1 failure, 2 usage, 130 interrupted, 143 terminated.\n";
  return print_and_exit_code(page);
}

}
