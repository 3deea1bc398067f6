// safetensors: an 8-byte header length, a JSON header, the data. The header is checked whole before anything is used: tensors
// inside the file, sizes equal to shape times element, no holes, overlaps, trailing bytes or duplicate names.
#pragma once

#include "base/result.h"
#include "checkpoint/tensor_entry.h"

namespace hunch {

inline constexpr uint64_t kMostSafetensorsHeader = 100'000'000;

// `file`: the whole file; `file_name` stands in messages. Entries in the order of the header.
Result<std::vector<TensorEntry>> parse_safetensors(
    FileBytes file, std::string_view file_name, IntegerTensors integers = IntegerTensors::Refuse);

// Hugging Face's name to the canonical one: "model.layers.3.self_attn.q_proj.weight" -> "blk.3.attn_q.weight". Empty for buffers
// without weights (rotary inv_freq). Unknown names are an error.
Result<std::string> canonical_name(std::string_view hf_name);

}
