// What CpuBackend does not forward to a launcher.
#include "backend/cpu/cpu_backend.h"

#include <fmt/format.h>

namespace hunch {

Result<std::unique_ptr<Backend>> CpuBackend::make(const Setup& setup) {
  if (setup.threads < 0 || setup.threads > 1024)
    return usage_error(fmt::format("{} threads: give 1 to 1024, or 0 for all cores that this process may use", setup.threads));
  HUNCH_TRY(const KernelTable* kernels, choose_kernels(setup.isa));
  return std::unique_ptr<Backend>(std::make_unique<CpuBackend>(*kernels, setup.threads ? setup.threads : usable_cores()));
}

CpuBackend::CpuBackend(const KernelTable& kernels, int threads)
    : kernels_(kernels),
      threads_(threads),
      matmul_(threads_, kernels.matmul),
      experts_(threads_, matmul_, kernels.rows),
      attention_(threads_, kernels.attention),
      nsa_(threads_, kernels.nsa, kernels.attention),
      sampler_(threads_, kernels.rows),
      log_probs_(threads_, kernels.rows) {}

std::string CpuBackend::description() const {
  return fmt::format("cpu ({}, {} thread{})", kernels_.isa, threads_.count(), threads_.count() == 1 ? "" : "s");
}

void CpuBackend::move_kv(const MoveKvArgs& args) {
  auto& store = static_cast<CpuKvStore&>(*args.kv.store);
  for (size_t i = 0; i < args.from.size(); ++i)
    if (args.from[i] != args.to[i]) store.move(args.kv.pages, args.from[i], args.to[i]);
}

// `from` does not descend, so nothing needs to be put aside: what moves down goes first, in order, then what moves up, backwards.
void CpuBackend::shuffle_kv(const ShuffleKvArgs& args) {
  auto& store = static_cast<CpuKvStore&>(*args.kv.store);
  int64_t first = args.first_entry;
  for (const int32_t length : args.lengths) {
    HUNCH_CHECK(args.from.extent[0] <= length);
    for (int64_t i = 0; i < args.from.extent[0]; ++i)
      if (args.from(i) > i) store.move(args.kv.pages, first + args.from(i), first + i);
    for (int64_t i = args.from.extent[0]; i-- > 0;)
      if (args.from(i) < i) store.move(args.kv.pages, first + args.from(i), first + i);
    first += length;
  }
}

static const Register<Backend> cpu{"cpu", "vector kernels chosen for this machine, several threads", CpuBackend::make};

}
