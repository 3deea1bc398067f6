// Not a test: prints the bench of products against the read bound. Run with --gtest_also_run_disabled_tests.
#include <fmt/format.h>

#include "backend/cuda/device_test.h"
#include "backend/cuda/kernel_bench.h"
#include "backend/cuda/matmul.h"

namespace hunch {
namespace {

TEST(BenchProducts, DISABLED_Print) {
  HUNCH_NEEDS_DEVICE();
  auto made = Commands::make();
  Commands& commands = **made;
  const double read = measure_ceilings().read_bytes / 1e12;
  fmt::print("{}, {} SMs: read {:.3f} TB/s\n", device_facts().name, device_facts().num_sms, read);
  for (const KernelRow& row : bench_products(commands))
    fmt::print("{:50} {:8.4f} ms {:6.3f} TB/s {:5.1f} % {:6.1f} TFLOP/s\n", row.name, row.ms, row.bytes / row.ms / 1e9,
               row.bytes / row.ms / 1e7 / read, row.flops / row.ms / 1e9);
}

}  // namespace
}  // namespace hunch
