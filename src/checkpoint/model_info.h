// ModelInfo: the figures of `hunch info`: what a checkpoint weighs and from which context on its KV cache weighs more.
#pragma once

#include "checkpoint/checkpoint.h"

namespace hunch {

struct EncodingShare {
  DType dtype = DType::F32;
  int tensors = 0;
  int64_t elements = 0;
  uint64_t bytes = 0;
};

struct ModelInfo {
  std::string family;
  int64_t parameters = 0;
  uint64_t file_bytes = 0, tensor_bytes = 0;
  // Read by one decode step whatever the context: every tensor, the embedding table only where it is also the head, of experts
  // as many as a token goes to.
  uint64_t weight_bytes_per_token = 0;
  std::vector<EncodingShare> encodings;  // those that occur, in DType's order
};

ModelInfo describe(const Checkpoint& checkpoint);

// Bytes that one token adds to the cache in all layers; block scales included for quantised types.
double kv_bytes_per_token(const ModelShape& shape, DType kv_type);

// The context length, in tokens, at which a decode step reads as many KV bytes as weight bytes (windows ignored).
int64_t balance_len(const ModelInfo& info, const ModelShape& shape, DType kv_type);

}
