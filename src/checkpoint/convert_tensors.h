// What conversions to GGUF share: the encoding that a tensor takes, and the stream of its rows through quantise_row. Used by
// quantise_checkpoint and quantise_drafter.
#pragma once

#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"
#include "checkpoint/gguf_writer.h"

namespace hunch {

struct PlannedTensor {
  const Tensor* tensor = nullptr;
  DType dtype = DType::F32;
  int permuted_heads = 0;      // > 0: rows of that many heads change from halves to neighbours
  bool whole_numbers = false;  // its bytes are copied, `dtype` says nothing
};

// llama.cpp's number for "mostly this encoding" (general.file_type).
uint32_t file_type_of(DType type);

// `asked` for matrices whose rows its blocks divide, else q8_0 or f16 and a note; f32 for vectors.
DType encoding_for(const Tensor& tensor, DType asked, std::vector<std::string>& notes);

// The name of a folder, or of the one that a file lies in.
std::string name_of_folder(const std::string& path);

// The destination may not be any file of the input.
Status check_destination(const std::string& in, const std::string& out);

// Writes the whole file, tensors in the order in which `writer` knows them. `bytes_in`: of all tensors. Errors, which leave
// nothing: weights that the encoding cannot hold, a full disk, the interruption.
Status write_planned(GgufWriter& writer, const std::string& out, const std::vector<PlannedTensor>& plan, int64_t head_dim,
    uint64_t bytes_in, const ConvertCallback& progress, const std::atomic<bool>* interrupted);

}
