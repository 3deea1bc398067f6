// Coverage for libFuzzer from any compiler: its own hooks are clang's alone, but GCC and clang both call __sanitizer_cov_trace_pc
// on every edge (-fsanitize-coverage=trace-pc). Counters by a hash of the caller's address; a program without libFuzzer counts
// for nobody, since the sanitizers' runtime then takes them and does nothing.
#include <cstdint>

extern "C" void __sanitizer_cov_8bit_counters_init(uint8_t* start, uint8_t* stop);

namespace {

constexpr uintptr_t kCounters = 1 << 16;
uint8_t counters[kCounters];
[[maybe_unused]] const bool known = (__sanitizer_cov_8bit_counters_init(counters, counters + kCounters), true);

}

extern "C" __attribute__((no_sanitize("address", "undefined"))) void __sanitizer_cov_trace_pc() {
  const auto caller = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  uint8_t& counter = counters[(caller ^ caller >> 16) % kCounters];
  if (counter < 255) ++counter;  // threads may lose a count
}

// Comparisons that GCC tells of and libFuzzer does not ask for.
extern "C" void __sanitizer_cov_trace_cmpf(float, float) {}
extern "C" void __sanitizer_cov_trace_cmpd(double, double) {}
