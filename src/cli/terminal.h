// What may be written to the standard streams: colour, progress, notes. Results go to stdout, everything else to stderr; nothing
// but text reaches a stream that is not a terminal, unless asked for.
#pragma once

#include "base/result.h"
#include "hunch/hunch.h"

namespace hunch {

enum class ColorWish { Auto, Always, Never };

// Whether to write escape codes: the flag, then NO_COLOR (not empty), CLICOLOR_FORCE (not empty, not "0"), then whether
// `is_terminal` and TERM is not "dumb".
bool color_wanted(ColorWish wish, bool is_terminal);
Result<ColorWish> parse_color(std::string_view flag, std::string_view text);

struct Paint {
  bool on = false;
  std::string bold(std::string_view s) const { return wrap("1", s); }
  std::string green(std::string_view s) const { return wrap("32", s); }
  std::string red(std::string_view s) const { return wrap("1;31", s); }

 private:
  std::string wrap(std::string_view code, std::string_view s) const;
};

bool stdin_is_terminal();
bool stdout_is_terminal();
bool stderr_is_terminal();

// Writes all of it at once. False: the reader has gone (a closed pipe) or the disk is full; output_error() then says which.
bool write_stdout(std::string_view text);
// What became of the writes since it was last asked: nothing of a closed pipe, else a message. The program ends with it.
Status output_error();
// The exit code of a command that ends by writing `text` to stdout.
int print_and_exit_code(std::string_view text);

// To stderr; where nobody takes it, the work goes on.
void tell(std::string_view text);
// "hunch: message" on stderr.
void complain(std::string_view message);
// "hunch: note: message" on stderr.
void note(std::string_view message);
// Prints the error and returns the exit code of its kind: 1 failure, 2 usage.
int fail(const Error& error);

// A line of progress on stderr, redrawn in place; nothing at all unless stderr is a terminal. Erases itself at the end.
class ProgressLine {
 public:
  ProgressLine() : on_(stderr_is_terminal()) {}
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  void show(std::string_view what, int64_t done, int64_t total);
  void clear();
  Progress callback() {  // for EngineOptions; this must outlive the engine's use of it
    return [this](std::string_view what, int64_t done, int64_t total) { show(what, done, total); };
  }

 private:
  bool on_, drawn_ = false;
  int64_t last_ms_ = 0;
};

// A bar of `width` cells for `share` in 0..1: eighths of blocks where `unicode`, else '#' and '.'.
std::string bar(double share, int width, bool unicode);
// Whether the locale's character set is UTF-8.
bool locale_is_utf8();

}
