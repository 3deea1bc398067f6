#include "engine/trace.h"

#include <cerrno>
#include <cstring>

#include "base/failure.h"

namespace hunch {

Result<std::unique_ptr<Trace>> Trace::open(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (!file) return failure("cannot write the trace {}: {}", path, std::strerror(errno));
  std::unique_ptr<Trace> trace(new Trace(file));
  if (!trace->file_) return failure("cannot write the trace {}: is there space?", path);
  return trace;
}

// The format allows an array that is never closed, and a comma behind its last element.
Trace::Trace(std::FILE* file) : file_(file) {
  std::setvbuf(file_, nullptr, _IOLBF, 1 << 16);
  write("[");
  lane(0, "engine");
}

Trace::~Trace() {
  if (!file_) return;
  std::fputs("{}]\n", file_);
  std::fclose(file_);
}

void Trace::write(std::string_view line) {
  if (!file_) return;
  if (std::fwrite(line.data(), 1, line.size(), file_) == line.size() && std::fputc('\n', file_) != EOF) return;
  std::fclose(file_);  // a full disk ends the trace, and nothing else
  file_ = nullptr;
}

void Trace::lane(int64_t lane, std::string_view name) {
  write(fmt::format(R"({{"name":"thread_name","ph":"M","pid":1,"tid":{},"args":{{"name":"{}"}}}},)", lane, name));
}

void Trace::span(int64_t lane, std::string_view name, Clock::time_point start, double ms, std::string_view args) {
  const double from = std::chrono::duration<double, std::micro>(start - origin_).count();
  write(fmt::format(
      R"({{"name":"{}","ph":"X","pid":1,"tid":{},"ts":{:.1f},"dur":{:.1f},"args":{{{}}}}},)", name, lane, from, 1e3 * ms, args));
}

}
