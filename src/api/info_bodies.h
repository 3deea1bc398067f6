// Bodies of the routes that run no model: /v1/models, /props, /slots, /version, /tokenize, /detokenize, /openapi.json. The server
// only carries them.
#pragma once

#include <variant>

#include "api/call.h"
#include "api/error.h"
#include "api/served_models.h"

namespace hunch {

using Answered = std::variant<std::string, ApiError>;  // a body, or why there is none

std::string models_body(const ServedModels& models);
// One of them: 404 if there is none of that name.
Answered model_body(const ServedModels& models, std::string_view name);

// llama.cpp's: what the first model (or the named one) is and how it runs. `version`: of the program.
Answered props_body(const ServedModels& models, std::string_view name, std::string_view version);
// A list of seats of all models; which request sits in which is not told.
std::string slots_body(const ServedModels& models);
std::string version_body(std::string_view version);
std::string openapi_body(std::string_view version);

// The answers to POST bodies; both dialects, told apart by their keys. CPU work like Call::parse: for a worker.
Answered tokenize_answer(std::string_view body, const ServedModels& models, const ApiLimits& limits);
Answered detokenize_answer(std::string_view body, const ServedModels& models, const ApiLimits& limits);

}
