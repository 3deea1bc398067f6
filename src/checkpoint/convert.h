// hunch quantize. quantise_checkpoint: any checkpoint to one GGUF file with all that llama.cpp needs; quantise_drafter: a learned
// drafter to one that DrafterFile opens.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"

namespace hunch {

struct ConvertProgress {
  std::string_view tensor;                   // now being written
  uint64_t bytes_done = 0, bytes_total = 0;  // of the input's tensors
};
using ConvertCallback = std::function<void(const ConvertProgress&)>;  // may be empty

struct ConvertReport {
  uint64_t bytes_in = 0, bytes_out = 0;  // tensors of the input, file written
  std::vector<std::string> notes;        // tensors that could not take the type asked for
};

// Matrices become `type` (f32, f16, bf16, q8_0, q4_0 or q4_k), the head and the embedding included; vectors become f32. A matrix
// whose rows no block of `type` divides falls back to q8_0 or f16. Metadata of a GGUF input are kept. `out` appears only when
// complete and never replaces the input. Once `interrupted` (may be null) is true an error comes soon.
Result<ConvertReport> quantise_checkpoint(const std::string& in, const std::string& out, DType type,
    const ConvertCallback& progress = {}, const std::atomic<bool>* interrupted = nullptr);

// The same for a learned drafter. Its tensors keep their names, tables of whole numbers their values, config.json its text.
// `method`: as DrafterFile::open takes it.
Result<ConvertReport> quantise_drafter(const std::string& in, const std::string& out, DType type, std::string_view method = {},
    const ConvertCallback& progress = {}, const std::atomic<bool>* interrupted = nullptr);

}
