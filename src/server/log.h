// Log: lines for people or JSON lines, to stderr or a file, by a thread of its own. Any thread may write; none ever waits: where
// the reader is slower, lines are dropped and counted. Texts of requests never come here.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

namespace hunch {

struct LogField {
  std::string_view name;
  std::variant<std::string_view, int64_t, double> value;
};

class Log {
 public:
  enum Level { Debug, Info, Warning, Failure };

  // `file`: empty: stderr.
  Log(std::string file, bool json, int least_level);
  ~Log();  // writes what is queued, as far as it can at once
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  void write(Level level, std::string_view message, std::initializer_list<LogField> fields = {});
  // The same, at most once a second for each `reason`.
  void write_seldom(Level level, std::string_view reason, std::string_view message, std::initializer_list<LogField> fields = {});
  void reopen();  // the file has been moved away
  int64_t dropped() const { return dropped_; }

 private:
  void work();

  const std::string path_;
  const bool json_;
  const int least_level_;
  int fd_ = -1;
  std::atomic<int64_t> dropped_{0};

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<std::string> lines_;
  size_t bytes_ = 0;
  std::map<std::string, double, std::less<>> last_by_reason_;
  bool closing_ = false, reopen_ = false;
  std::thread thread_;
};

// One line with its end. Control characters are escaped; `time`: seconds since 1970.
std::string log_line(double time, Log::Level level, std::string_view message, std::initializer_list<LogField> fields, bool json);

}
