// Backends that tests compare, by the name of their instruction set.
#pragma once

#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"
#include "tensor/test_view.h"

namespace hunch {

using namespace test;

inline std::unique_ptr<Backend> make_cpu(const std::string& isa, int threads = 1) {
  return CpuBackend::make({threads, isa}).value();
}

// "reference", or an instruction set.
inline std::unique_ptr<Backend> make_backend(const std::string& name, int threads = 1) {
  if (name == "reference") return std::make_unique<ReferenceBackend>();
  return make_cpu(name, threads);
}

// The reference, then every instruction set that runs here.
inline std::vector<std::string> all_backends() {
  std::vector<std::string> names = available_isas();
  names.insert(names.begin(), "reference");
  return names;
}
inline constexpr auto backend_name = [](const auto& info) { return info.param; };  // of a test's parameter

}
