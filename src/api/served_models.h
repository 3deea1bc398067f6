// The models that a server offers under their names. Made once at start, then read by all threads.
#pragma once

#include <nlohmann/json.hpp>
#include <variant>

#include "api/error.h"
#include "hunch/hunch.h"

namespace hunch {

class ChatPrompts;  // api/chat_prompts.h

struct ServedModel {
  std::string id;                    // the name in answers, where the client said none
  std::vector<std::string> aliases;  // further names; exact, case-sensitive
  Engine* engine = nullptr;          // outlives this
  int64_t created = 0;               // seconds since 1970
  Request defaults;                  // what bodies do not say (sampling, speculation)
  std::string fingerprint;           // system_fingerprint; empty: null
  std::string path;                  // for /props; empty: not told
  std::string chat_template;         // instead of the model's own; empty: that
  nlohmann::ordered_json chat_template_kwargs = nlohmann::ordered_json::object();
  bool trust_request_template = false;  // bodies may bring a template
  std::string tool_parser;              // a name of tool_parser.h; empty: by the chat template, where that is known
  std::string reasoning_parser;         // a name of reasoning_parser.h; empty: by the chat template; "none": off
};

class ServedModels {
 public:
  ServedModels();
  ~ServedModels();
  ServedModels(const ServedModels&) = delete;
  ServedModels& operator=(const ServedModels&) = delete;

  // Errors: a name that another model has; unknown parsers; a chat_template (the override) that cannot be used.
  Status add(ServedModel model);

  // Empty: the first. Unknown: 404 model_not_found, which lists the names that are served.
  std::variant<const ServedModel*, ApiError> find(std::string_view name) const;
  const ChatPrompts& chat(const ServedModel& model) const;  // of a model that find() gave

  size_t size() const { return entries_.size(); }
  const ServedModel& at(size_t index) const;

 private:
  struct Entry;  // a model and what was made for it
  std::vector<std::unique_ptr<Entry>> entries_;
};

}
