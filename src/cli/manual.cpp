// hunch completion and hunch man. Both ask the commands themselves, so that neither can fall behind the flags.
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <sstream>

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
  local word=${COMP_WORDS[COMP_CWORD]} part=${COMP_WORDS[2]} words=
  if [ "$COMP_CWORD" = 1 ]; then words=$(hunch --command-names)
  else
    [[ $COMP_CWORD == 2 || $part == -* ]] && part=
    words=$({ hunch "${COMP_WORDS[1]}" $part --flag-names || hunch "${COMP_WORDS[1]}" --flag-names; } 2>/dev/null)
    [[ $word == -* ]] || words=$([ "$COMP_CWORD" = 2 ] && grep -v ^- <<<"$words")
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -o default -F _hunch hunch
)sh"},
    {"zsh", R"zsh(#compdef hunch
_hunch() {
  if (( CURRENT == 2 )); then compadd -- ${(f)"$(hunch --command-names)"}
  else
    local part=$words[3] names
    [[ $CURRENT == 3 || $part == -* ]] && part=
    names=(${(f)"$({ hunch $words[2] $part --flag-names || hunch $words[2] --flag-names; } 2>/dev/null)"})
    if [[ $words[CURRENT] == -* ]]; then compadd -- $names
    else
      (( CURRENT == 3 )) && compadd -- ${names:#-*}
      _files
    fi
  fi
}
compdef _hunch hunch
)zsh"},
    {"fish", R"sh(complete -c hunch -n __fish_use_subcommand -f -a '(hunch --command-names)'
complete -c hunch -n 'not __fish_use_subcommand; and string match -q -- "-*" (commandline -ct)' -f \
  -a '(set -l w (commandline -opc); hunch $w[2] (string match -v -- "-*" $w[3]) --flag-names 2>/dev/null; or hunch $w[2] --flag-names)'
complete -c hunch -n 'test (count (commandline -opc)) = 2' -a '(hunch (commandline -opc)[2] --flag-names 2>/dev/null | string match -v -- "-*")'
)sh"},
};

// What a command prints to the standard output: that is a file meanwhile.
std::string printed_by(const Command& command, const std::vector<std::string>& arguments) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::tmpfile(), std::fclose);
  const int output = file ? dup(STDOUT_FILENO) : -1;
  if (output < 0 || dup2(fileno(file.get()), STDOUT_FILENO) < 0) return {};
  HUNCH_CHECK(command.run(arguments).ok());
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
  return usage_error("no completion for {}: there is bash, zsh and fish", *name);
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
    const auto section = [&](const std::string& part) {
      std::string title = fmt::format("hunch {}{}{}", command.name, part.empty() ? "" : " ", part);
      std::transform(title.begin(), title.end(), title.begin(), [](unsigned char c) { return char(std::toupper(c)); });
      std::vector<std::string> arguments{part, "--help"};
      if (part.empty()) arguments.erase(arguments.begin());
      page += fmt::format(".SH {}\n.nf\n{}.fi\n", roff(title), roff(printed_by(command, arguments)));
    };
    section("");
    std::istringstream names(printed_by(command, {"--flag-names"}));
    for (std::string name; names >> name;)
      if (name[0] != '-') section(name);
  }
  page += ".SH EXIT STATUS\n0 done, 1 failure, 2 usage, 130 interrupted, 143 terminated.\n";
  return print_and_exit_code(page);
}

}
