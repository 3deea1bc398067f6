#include "server/log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <iterator>
#include <utility>

namespace hunch {
namespace {

constexpr size_t kMostBytes = 1 << 20;  // that wait to be written
constexpr int kPatienceMs = 500;        // with a full pipe
constexpr const char* kNames[] = {"debug", "info", "warning", "error"};

void escape_into(std::string& out, std::string_view text) {
  for (const char c : text) {
    if (c == '"' || c == '\\') (out += '\\') += c;
    else if (uint8_t(c) < 0x20 || c == 0x7f) fmt::format_to(std::back_inserter(out), "\\u{:04x}", int(c));
    else out += c;
  }
}

void value_into(std::string& out, const LogField& field, bool json) {
  const auto to = std::back_inserter(out);
  if (const auto* text = std::get_if<std::string_view>(&field.value)) {
    const bool quoted = json || text->empty() || text->find_first_of(" =\"\\") != text->npos;
    if (quoted) out += '"';
    escape_into(out, *text);
    if (quoted) out += '"';
  } else if (const auto* whole = std::get_if<int64_t>(&field.value)) {
    fmt::format_to(to, "{}", *whole);
  } else {
    fmt::format_to(to, "{:.3f}", std::get<double>(field.value));
  }
}

double wall_seconds() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }
double steady_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}

std::string log_line(double time, Log::Level level, std::string_view message, std::initializer_list<LogField> fields, bool json) {
  const double whole = std::floor(time);
  const std::string stamp =
      fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03d}Z", fmt::gmtime(std::time_t(whole)), int((time - whole) * 1000));
  std::string out;
  if (json) {
    out = fmt::format(R"({{"time":"{}","level":"{}","message":")", stamp, kNames[level]);
    escape_into(out, message);
    out += '"';
    for (const LogField& field : fields) {
      fmt::format_to(std::back_inserter(out), ",\"{}\":", field.name);
      value_into(out, field, true);
    }
    return out += "}\n";
  }
  out = fmt::format("{} {:<7} ", stamp, kNames[level]);
  escape_into(out, message);
  for (const LogField& field : fields) {
    fmt::format_to(std::back_inserter(out), " {}=", field.name);
    value_into(out, field, false);
  }
  return out += '\n';
}

Log::Log(std::string file, bool json, int least_level) : path_(std::move(file)), json_(json), least_level_(least_level) {
  if (path_.empty()) fd_ = STDERR_FILENO;
  else reopen_ = true;
  thread_ = std::thread([this] { work(); });
}

Log::~Log() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (!path_.empty() && fd_ >= 0) close(fd_);
}

void Log::write(Level level, std::string_view message, std::initializer_list<LogField> fields) {
  if (level < least_level_) return;
  std::string line = log_line(wall_seconds(), level, message, fields, json_);
  {
    const std::lock_guard lock(mutex_);
    if (bytes_ + line.size() > kMostBytes) {
      ++dropped_;
      return;
    }
    bytes_ += line.size();
    lines_.push_back(std::move(line));
  }
  changed_.notify_one();
}

void Log::write_seldom(Level level, std::string_view reason, std::string_view message, std::initializer_list<LogField> fields) {
  {
    const std::lock_guard lock(mutex_);
    const double now = steady_seconds();
    auto last = last_by_reason_.find(reason);
    if (last == last_by_reason_.end()) last = last_by_reason_.emplace(reason, now - 2).first;
    if (now - last->second < 1) return;
    last->second = now;
  }
  write(level, message, fields);
}

void Log::reopen() {
  {
    const std::lock_guard lock(mutex_);
    reopen_ = !path_.empty();
  }
  changed_.notify_one();
}

void Log::work() {
  for (;;) {
    std::vector<std::string> lines;
    bool closing, reopen;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return closing_ || reopen_ || !lines_.empty(); });
      lines.swap(lines_);
      bytes_ = 0;
      closing = closing_, reopen = std::exchange(reopen_, false);
    }
    if (reopen) {
      const int fd = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
      if (fd >= 0 && fd_ >= 0) close(fd_);
      if (fd >= 0) fd_ = fd;
    }
    bool stuck = closing;
    for (const std::string& line : lines) {
      // A reader that is stuck gets a moment, not this thread: whoever ends the server waits for it.
      pollfd ready{fd_, POLLOUT, 0};
      stuck = fd_ < 0 || ::poll(&ready, 1, stuck ? 0 : kPatienceMs) != 1;
      if (stuck || ::write(fd_, line.data(), line.size()) != ssize_t(line.size())) ++dropped_;
    }
    if (closing) return;
  }
}

}
