// Writes when every kernel and copy of a CUDA program began and ended, as records of four 64-bit words (begin ns, end ns,
// correlation id, graph id), to the file $KERNEL_TIMES. Loaded into a program by the driver ($CUDA_INJECTION64_PATH), which need
// not know of it; scripts/gpu_check builds it.
// idle.py beside it says what the records of a run of `hunch bench rounds` mean. All nodes of one start of a graph have one
// correlation id.
#include <cupti.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

namespace {

std::FILE* file = nullptr;

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* most) {
  *size = size_t(8) << 20, *most = 0;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(64, *size));
}

void write(uint64_t begin, uint64_t end, uint64_t correlation, uint64_t graph) {
  const uint64_t words[] = {begin, end, correlation, graph};
  std::fwrite(words, sizeof words, 1, file);
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* k = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
      write(k->start, k->end, k->correlationId, k->graphId);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto* m = reinterpret_cast<const CUpti_ActivityMemcpy5*>(record);
      write(m->start, m->end, m->correlationId, 0);
    }
  }
  std::free(buffer);
}

void finish() {
  cuptiActivityFlushAll(1);
  std::fclose(file);
}

}

extern "C" int InitializeInjection() {
  const char* path = std::getenv("KERNEL_TIMES");
  file = path ? std::fopen(path, "wb") : nullptr;
  if (!file) return 0;
  if (cuptiActivityRegisterCallbacks(give_buffer, take_buffer) != CUPTI_SUCCESS) return 0;
  for (const auto kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY})
    if (cuptiActivityEnable(kind) != CUPTI_SUCCESS) std::fprintf(stderr, "kernel_times: this is not recorded: %d\n", int(kind));
  std::atexit(finish);
  return 1;
}
