#include "cli/batch_files.h"

#include <fcntl.h>
#include <pthread.h>
#include <simdjson.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>

#include "api/batch_line.h"
#include "base/failure.h"

namespace hunch {
namespace {

constexpr size_t kAhead = size_t(1) << 20;
// What every answer begins with. A torn line that begins otherwise is somebody else's file.
constexpr std::string_view kAnswerStart = R"({"id":)";

bool blank(std::string_view text) { return text.find_first_not_of(" \t\r") == text.npos; }

Error io_error(const std::string& path, std::string_view what, int error) {
  return failure("{}: {}: {}", path, what, std::strerror(error));
}

}

Result<std::unique_ptr<BatchInput>> BatchInput::open(const std::string& path) {
  int descriptor = STDIN_FILENO;
  if (path != "-") descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return io_error(path, "cannot be opened", errno);
  struct stat about = {};
  fstat(descriptor, &about);
  if (S_ISDIR(about.st_mode)) {
    if (path != "-") close(descriptor);
    return failure("{}: is a folder; hunch batch reads a file with a JSON object on every line", path);
  }
  return std::unique_ptr<BatchInput>(new BatchInput(descriptor, S_ISREG(about.st_mode) ? about.st_size : 0));
}

BatchInput::BatchInput(int descriptor, int64_t bytes) : descriptor_(descriptor), bytes_(bytes) {
  struct sigaction action = {};
  action.sa_handler = [](int) {};  // without SA_RESTART: it interrupts a read that would wait for ever
  sigemptyset(&action.sa_mask);
  sigaction(SIGUSR1, &action, nullptr);
  thread_ = std::thread([this] { read_all(); });
}

BatchInput::~BatchInput() {
  closing_ = true;
  while (!gone_) {  // the signal may come just before the read: again, until it is out
    {
      const std::lock_guard lock(mutex_);
      room_.notify_all();
    }
    pthread_kill(thread_.native_handle(), SIGUSR1);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  thread_.join();
  if (descriptor_ != STDIN_FILENO) close(descriptor_);
}

void BatchInput::add(std::string text, bool too_long, int64_t end) {
  std::unique_lock lock(mutex_);
  ++number_;
  if (!text.empty() && text.back() == '\r') text.pop_back();
  if (number_ == 1 && text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  if (blank(text)) return;
  room_.wait(lock, [&] { return lines_.empty() || held_bytes_ < kAhead || closing_; });
  held_bytes_ += text.size();
  lines_.push_back({std::move(text), number_, end, too_long});
}

void BatchInput::read_all() {
  std::string line, block(size_t(1) << 16, '\0');
  bool too_long = false;
  int64_t offset = 0;
  int error = 0;
  while (!closing_) {
    const ssize_t n = read(descriptor_, block.data(), block.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) error = errno;
    if (n <= 0) break;
    std::string_view rest(block.data(), n);
    while (!rest.empty() && !closing_) {
      const size_t newline = rest.find('\n'), taken = std::min(newline, rest.size());
      too_long = too_long || line.size() + taken > kMaxBatchLineBytes;
      if (!too_long) line += rest.substr(0, taken);
      offset += taken;
      rest.remove_prefix(taken);
      if (newline == rest.npos) break;
      rest.remove_prefix(1), ++offset;
      add(std::move(line), too_long, offset);
      line.clear(), too_long = false;
    }
  }
  if (!closing_ && !line.empty()) add(std::move(line), too_long, offset);
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    if (error != 0) status_ = failure("the input cannot be read: {}", std::strerror(error));
  }
  gone_ = true;
}

std::optional<BatchInput::Line> BatchInput::next() {
  const std::lock_guard lock(mutex_);
  if (lines_.empty()) return {};
  Line line = std::move(lines_.front());
  lines_.pop_front();
  held_bytes_ -= line.text.size();
  room_.notify_all();
  return line;
}

bool BatchInput::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_ && lines_.empty();
}

Status BatchInput::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

Result<std::unique_ptr<BatchOutput>> BatchOutput::open(const std::string& path, const BatchInput& input) {
  if (path == "-") return std::unique_ptr<BatchOutput>(new BatchOutput(STDOUT_FILENO));
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor < 0) return io_error(path, "cannot be opened", errno);
  std::unique_ptr<BatchOutput> out(new BatchOutput(descriptor));
  struct stat ours = {}, theirs = {};
  if (fstat(descriptor, &ours) == 0 && fstat(input.descriptor(), &theirs) == 0 && ours.st_dev == theirs.st_dev &&
      ours.st_ino == theirs.st_ino && S_ISREG(ours.st_mode))
    return usage_error("{}: is the input; answers need a file of their own", path);
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return failure("{}: another hunch batch writes to it", path);
  if (S_ISREG(ours.st_mode)) HUNCH_OK(out->read_earlier(path));
  return out;
}

BatchOutput::~BatchOutput() {
  if (descriptor_ != STDOUT_FILENO) close(descriptor_);
}

Status BatchOutput::read_earlier(const std::string& path) {
  const auto foreign = [&](int64_t number) {
    return failure("{}: line {} is no answer of hunch batch; name another file, this one is left as it is", path, number);
  };
  std::string line, block(size_t(1) << 16, '\0');
  int64_t number = 1, whole = 0, at = 0;
  for (;;) {
    const ssize_t n = pread(descriptor_, block.data(), block.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error(path, "cannot be read", errno);
    if (n == 0) break;
    at += n;
    std::string_view rest(block.data(), n);
    for (size_t newline; (newline = rest.find('\n')) != rest.npos; ++number) {
      line += rest.substr(0, newline);
      whole += std::ssize(line) + 1;
      if (!take_earlier(line).ok()) return foreign(number);
      line.clear();
      rest.remove_prefix(newline + 1);
    }
    line += rest;
  }
  if (line.empty()) return {};
  const size_t seen = std::min(line.size(), kAnswerStart.size());
  if (line.compare(0, seen, kAnswerStart, 0, seen) != 0) return foreign(number);
  if (ftruncate(descriptor_, whole) != 0) return io_error(path, "its torn last line cannot be cut off", errno);
  return {};
}

Status BatchOutput::take_earlier(std::string_view line) {
  if (blank(line)) return {};
  simdjson::dom::parser parser;
  simdjson::dom::element root, id, error, answer;
  int64_t number = 0;
  if (!line.starts_with(kAnswerStart) || parser.parse(line.data(), line.size()).get(root) != simdjson::SUCCESS ||
      root["id"].get(id) != simdjson::SUCCESS)
    return Error{"foreign"};
  const bool failed = root["error"].get(error) == simdjson::SUCCESS && !error.is_null();
  if (!failed && root["choices"].get(answer) != simdjson::SUCCESS && root["response"].get(answer) != simdjson::SUCCESS)
    return Error{"foreign"};
  errors_ += failed;
  if (!id.is_null()) ids_.insert(simdjson::minify(id));
  else if (failed && error["line"].get(number) == simdjson::SUCCESS) lines_.insert(number);
  else return Error{"foreign"};
  return {};
}

bool BatchOutput::write(std::string line) {
  line += '\n';
  // A regular file takes all of it at once; what a full disk or a pipe leaves over follows, or is cut off by the next run.
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t n = ::write(descriptor_, rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return errno_ = errno, false;
    rest.remove_prefix(n);
  }
  return true;
}

Status BatchOutput::status() const {
  if (errno_ == 0 || errno_ == EPIPE) return {};
  return failure("answers cannot be written: {}", std::strerror(errno_));
}

}
