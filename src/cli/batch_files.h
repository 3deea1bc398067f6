// The two files of hunch batch: lines that are read ahead of the work, and answers that survive an interruption at any byte.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>

#include "base/result.h"

namespace hunch {

// Lines of a file or of the standard input ("-"), read by a thread of its own: a writer that makes us wait must not hold up the
// answers. Reads ahead by about a MiB.
class BatchInput {
 public:
  static Result<std::unique_ptr<BatchInput>> open(const std::string& path);
  ~BatchInput();
  BatchInput(const BatchInput&) = delete;
  BatchInput& operator=(const BatchInput&) = delete;

  struct Line {
    std::string text;
    int64_t number = 0;     // from 1
    int64_t end = 0;        // bytes of the file up to here
    bool too_long = false;  // only its beginning was kept
  };
  // The next line that is not blank; nothing where none is there yet, or where ended() says that none will come.
  std::optional<Line> next();
  bool ended() const;
  Status status() const;                    // why reading ended early, if it did
  int64_t bytes() const { return bytes_; }  // of the whole file; 0: not known
  int descriptor() const { return descriptor_; }

 private:
  BatchInput(int descriptor, int64_t bytes);
  void read_all();
  void add(std::string text, bool too_long, int64_t end);

  int descriptor_;
  int64_t bytes_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable room_;
  std::deque<Line> lines_;
  size_t held_bytes_ = 0;
  int64_t number_ = 0;
  bool ended_ = false;
  Status status_;
  std::atomic<bool> closing_{false}, gone_{false};
  std::thread thread_;
};

// Answers, one line each, in a file or on the standard output ("-"). A file that is there is continued: see answered_*.
class BatchOutput {
 public:
  // Reads what an earlier run left; a last line without its end is cut off. Errors: no output of hunch batch (left as it is),
  // also the input, written by another run.
  static Result<std::unique_ptr<BatchOutput>> open(const std::string& path, const BatchInput& input);
  ~BatchOutput();
  BatchOutput(const BatchOutput&) = delete;
  BatchOutput& operator=(const BatchOutput&) = delete;

  // One write(2) of the whole line. False: the reader has gone or the disk is full; status() tells.
  bool write(std::string line);
  Status status() const;

  const std::set<std::string>& answered_ids() const { return ids_; }  // as JSON
  const std::set<int64_t>& answered_lines() const { return lines_; }  // lines without an id of their own
  int64_t earlier_errors() const { return errors_; }

 private:
  explicit BatchOutput(int descriptor) : descriptor_(descriptor) {}
  Status read_earlier(const std::string& path);
  Status take_earlier(std::string_view line);

  int descriptor_;
  int errno_ = 0;
  std::set<std::string> ids_;
  std::set<int64_t> lines_;
  int64_t errors_ = 0;
};

}
