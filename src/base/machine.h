// What this machine lets the process have. Linux; elsewhere, or in an odd container, the answers are those of the whole machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hunch {

// Memory that the process may fill: the machine's, or the limit of its control group where that is less.
int64_t usable_memory_bytes();
// The limit of the control group whose files lie under `root` (version 2 or 1); 0: none.
int64_t cgroup_memory_limit(const std::string& root);
// Memory that could be had now without pushing anything out, within the limit; 0: not known.
int64_t free_memory_bytes();
// The value of `key` in a file of lines "key: value"; empty where there is none.
std::string machine_fact(const std::string& file, std::string_view key);

}
