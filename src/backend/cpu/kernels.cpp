// See kernels.h.
#include "backend/cpu/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <fmt/format.h>

namespace hunch {
namespace {

struct Level {
  const KernelTable& (*table)();
  bool available;
};

// Slowest first.
std::vector<Level> levels() {
  std::vector<Level> list{{kernels_portable, true}};
#if defined(__x86_64__)
  __builtin_cpu_init();
  unsigned a = 0, b = 0, c = 0, d = 0;  // F16C has no name that both compilers know; AVX2's vouches for the system's part
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
  const bool v3 = f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool vnni = v4 && __builtin_cpu_supports("avx512vnni"), bf16 = vnni && __builtin_cpu_supports("avx512bf16");
  list.push_back({kernels_avx2, v3});
  list.push_back({kernels_avx512, v4});
  list.push_back({kernels_avx512_vnni, vnni});
  // Where a product of bf16 pairs takes the time of four fused ones (Sapphire and Emerald Rapids), those are the faster.
  list.insert(list.end() - (__builtin_cpu_is("intel") ? 1 : 0), {kernels_avx512_bf16, bf16});
#endif
  return list;
}

}

Result<const KernelTable*> choose_kernels(std::string_view isa) {
  const KernelTable* best = nullptr;
  std::string names;
  for (const Level& level : levels()) {
    const KernelTable& table = level.table();
    names += (names.empty() ? "" : ", ") + std::string(table.isa);
    if (isa == table.isa && !level.available)
      return usage_error(
          fmt::format("this machine cannot run instruction set {}: choose one of {}", isa, fmt::join(available_isas(), ", ")));
    if (level.available && (isa.empty() || isa == table.isa)) best = &table;
  }
  if (!best) return usage_error(fmt::format("unknown instruction set (choose one of {}): {}", names, isa));
  return best;
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Level& level : levels())
    if (level.available) names.emplace_back(level.table().isa);
  return names;
}

}
