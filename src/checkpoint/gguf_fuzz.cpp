// libFuzzer: a GGUF file, opened as a model and as a vocabulary.

#include "checkpoint/gguf.h"
#include "checkpoint/memory_checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hunch;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  if (const auto file = GgufFile::parse(bytes, "fuzz"); file.ok())
    for (const TensorEntry& entry : file.value().tensors())
      if (entry.offset + entry.bytes > size || entry.offset + entry.bytes < entry.offset) __builtin_trap();
  for (const bool vocab_only : {false, true})
    if (const auto opened = open_gguf_bytes(bytes, "fuzz", vocab_only); opened.ok())
      for (const Tensor& tensor : (*opened.value()).tensors())
        if (tensor.data[0] == std::byte(1) && tensor.data[tensor.bytes - 1] == std::byte(2)) return 0;
  return 0;
}
