// The shape of a learned drafter's own layers, from its config.json: the keys of a Llama-style configuration, at the top or
// inside an object ("transformer_layer_config", as the speculators format has it).
#pragma once

#include "checkpoint/json_config.h"
#include "checkpoint/shape.h"

namespace hunch {

// `inside`: "" or the object's name. Absent keys are the target's where the two must agree (vocabulary), else an error that names
// the key. Ranges and divisibility are checked.
Result<ModelShape> drafter_shape(const JsonConfig&, std::string_view inside, const ModelShape& target);

}
