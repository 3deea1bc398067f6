// The only file that asks what the standard streams are. Text is written by write(2): the C and C++ streams would hold a token
// back and report a closed pipe too late.
#include "cli/terminal.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>

#include "api/values.h"

namespace hunch {
namespace {

bool set_and_not(const char* name, std::string_view refused) {
  const char* value = std::getenv(name);
  return value && *value && value != refused;
}

// Why the last write failed: errno has changed by the time somebody asks.
int& write_errno() {
  static int value = 0;
  return value;
}

}

bool color_wanted(ColorWish wish, bool is_terminal) {
  if (wish != ColorWish::Auto) return wish == ColorWish::Always;
  // no-color.org: any value that is not empty counts, and it beats CLICOLOR_FORCE.
  if (set_and_not("NO_COLOR", "")) return false;
  if (set_and_not("CLICOLOR_FORCE", "0")) return true;
  const char* term = std::getenv("TERM");
  return is_terminal && !(term && std::string_view(term) == "dumb");
}

Result<ColorWish> parse_color(std::string_view flag, std::string_view text) {
  if (text.empty() || text == "on") text = "always";  // llama.cpp's
  if (text == "off") text = "never";
  static constexpr std::string_view kWishes[] = {"auto", "always", "never"};
  HUNCH_TRY(const std::string wish, parse_choice(flag, text, kWishes));
  return wish == "auto" ? ColorWish::Auto : wish == "always" ? ColorWish::Always : ColorWish::Never;
}

std::string Paint::wrap(std::string_view code, std::string_view s) const {
  return on && !s.empty() ? fmt::format("\033[{}m{}\033[0m", code, s) : std::string(s);
}

bool stdin_is_terminal() { return isatty(STDIN_FILENO) == 1; }
bool stdout_is_terminal() { return isatty(STDOUT_FILENO) == 1; }
bool stderr_is_terminal() { return isatty(STDERR_FILENO) == 1; }

bool write_stdout(std::string_view text) {
  while (!text.empty()) {  // the descriptor itself: streaming wants no buffer, and errors must be seen at once
    const ssize_t n = write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return write_errno() = errno, false;
    text.remove_prefix(n);
  }
  return true;
}

Status output_error() {
  const int error = std::exchange(write_errno(), 0);
  if (error == 0 || error == EPIPE) return {};
  return failure("cannot write to the standard output: {}", std::strerror(error));
}

int print_and_exit_code(std::string_view text) {
  if (write_stdout(text)) return 0;
  const Status status = output_error();
  return status.ok() ? 0 : fail(status.error());
}

void tell(std::string_view text) {
  (void)!std::fwrite(text.data(), 1, text.size(), stderr);
  (void)std::fflush(stderr);
}
void complain(std::string_view message) { tell(fmt::format("hunch: {}\n", message)); }
void note(std::string_view message) { tell(fmt::format("hunch: note: {}\n", message)); }

int fail(const Error& error) {
  complain(error.message);
  return error.kind == Error::Kind::Usage ? 2 : 1;
}

void ProgressLine::show(std::string_view what, int64_t done, int64_t total) {
  if (!on_ || total <= 0) return;
  const int64_t now =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  if (done < total && now - last_ms_ < 60) return;  // redrawing costs a write; the eye needs few
  last_ms_ = now;
  if (done >= total) return clear();
  const double share = double(done) / total;
  tell(fmt::format("\r{:<9} {} {:3.0f} %\033[K", what, bar(share, 40, locale_is_utf8()), 100 * share));
  drawn_ = true;
}

void ProgressLine::clear() {
  if (!drawn_) return;
  tell("\r\033[K");
  drawn_ = false;
}

std::string bar(double share, int width, bool unicode) {
  share = std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0;
  const int eighths = int(std::lround(share * width * 8));
  std::string out;
  if (!unicode) {
    const int full = (eighths + 4) / 8;
    return std::string(full, '#') + std::string(width - full, '.');
  }
  static constexpr std::string_view kParts[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  for (int i = 0; i < eighths / 8; ++i) out += "█";
  out += kParts[eighths % 8];
  const int used = eighths / 8 + (eighths % 8 > 0);
  return out + std::string(width - used, ' ');
}

bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (!value || !*value) continue;
    const std::string_view v = value;
    return v.find("UTF-8") != v.npos || v.find("utf8") != v.npos || v.find("utf-8") != v.npos || v.find("UTF8") != v.npos;
  }
  return false;
}

}
