// Models with natively trained sparse attention: their keys in config.json and GGUF files, what makes them possible, and three
// publishers' names of their tensors. docs/nsa.md lists all of them.
#pragma once

#include "checkpoint/gguf_writer.h"
#include "checkpoint/json_config.h"
#include "checkpoint/shape.h"

namespace hunch {

// config.json: an object `nsa`; or, without one, the flat keys of fla (block_size, block_counts, window_size) or those of
// XunhaoLai's (kernel_size, kernel_stride, block_size, topk, ...).
Result<NsaShape> read_nsa(const JsonConfig&);
Result<NsaShape> read_nsa(const GgufFile&);  // keys nsa.*
void add_nsa(GgufWriter&, const NsaShape&);

// Ranges, and what must divide what; `source` stands in messages.
Status check_nsa(const ModelShape&, std::string_view source);

// A name as any of the publishers spells it to the canonical one; see canonical_name().
Result<std::string> nsa_canonical_name(std::string_view name);

}
