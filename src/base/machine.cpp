#include "base/machine.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>

namespace hunch {
namespace {

// The first line as a whole number; 0 for "max", for other words and for what cannot be read.
int64_t number_in(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  int64_t value = 0;
  if (!std::getline(file, line)) return 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  return error == std::errc() && value > 0 ? value : 0;
}

int64_t physical_bytes() { return int64_t(sysconf(_SC_PHYS_PAGES)) * int64_t(sysconf(_SC_PAGE_SIZE)); }

constexpr const char* kCgroup = "/sys/fs/cgroup";

}

int64_t cgroup_memory_limit(const std::string& root) {
  int64_t least = 0;
  for (const char* file : {"/memory.max", "/memory.high", "/memory/memory.limit_in_bytes"})
    if (const int64_t limit = number_in(root + file); limit > 0) least = least > 0 ? std::min(least, limit) : limit;
  return least;
}

int64_t usable_memory_bytes() {
  const int64_t limit = cgroup_memory_limit(kCgroup), all = physical_bytes();
  return limit > 0 ? std::min(limit, all) : all;
}

int64_t free_memory_bytes() {
  const std::string line = machine_fact("/proc/meminfo", "MemAvailable");
  int64_t kib = 0;
  std::from_chars(line.data(), line.data() + line.size(), kib);
  int64_t available = kib * 1024;
  if (const int64_t limit = cgroup_memory_limit(kCgroup); limit > 0) {
    const int64_t used = std::max(
        number_in(std::string(kCgroup) + "/memory.current"), number_in(std::string(kCgroup) + "/memory/memory.usage_in_bytes"));
    available = std::min(available, std::max<int64_t>(0, limit - used));
  }
  return available;
}

std::string machine_fact(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t colon = line.find_first_not_of(" \t", key.size());
    if (colon == line.npos || line[colon] != ':') continue;  // "model name" is not "model"
    const size_t at = line.find_first_not_of(" \t", colon + 1);
    return at == line.npos ? std::string() : line.substr(at);
  }
  return {};
}

}
