#include "api/served_models.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/chat_prompts.h"
#include "api/reasoning_parser.h"
#include "api/tool_parser.h"
#include "base/failure.h"
#include "text/excerpt.h"

namespace hunch {

struct ServedModels::Entry {
  ServedModel model;
  ChatPrompts chat;
};

ServedModels::ServedModels() = default;
ServedModels::~ServedModels() = default;

Status ServedModels::add(ServedModel model) {
  HUNCH_CHECK(model.engine != nullptr);
  std::vector<std::string> names = model.aliases;
  names.push_back(model.id);
  for (const std::string& name : names) {
    if (name.empty()) return usage_error("a served model's name is empty");
    if (std::holds_alternative<const ServedModel*>(find(name)))
      return usage_error("two served models are called {}", excerpt(name));
  }
  if (!model.tool_parser.empty() && !is_tool_parser(model.tool_parser))
    return usage_error("there is no tool call parser {}; there are {}", excerpt(model.tool_parser), tool_parser_names());
  if (!model.reasoning_parser.empty() && !is_reasoning_parser(model.reasoning_parser))
    return usage_error(
        "there is no reasoning parser {}; there are {}", excerpt(model.reasoning_parser), reasoning_parser_names());
  ChatPrompts chat(*model.engine, model.chat_template, model.chat_template_kwargs, model.trust_request_template);
  if (!model.chat_template.empty() && !chat.trouble().empty()) return usage_error(chat.trouble());
  entries_.push_back(std::make_unique<Entry>(Entry{std::move(model), std::move(chat)}));
  return {};
}

std::variant<const ServedModel*, ApiError> ServedModels::find(std::string_view name) const {
  std::string known;
  for (const auto& entry : entries_) {
    const ServedModel& model = entry->model;
    if (name.empty() || model.id == name || std::ranges::find(model.aliases, name) != model.aliases.end()) return &model;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", model.id);
  }
  ApiError error =
      api_error(404, fmt::format("the model {} is not served; there are: {}", excerpt(name), known), "model_not_found");
  error.param = "model";
  return error;
}

const ServedModel& ServedModels::at(size_t index) const { return entries_[index]->model; }

const ChatPrompts& ServedModels::chat(const ServedModel& model) const {
  for (const auto& entry : entries_)
    if (&entry->model == &model) return entry->chat;
  HUNCH_CHECK(false);
  std::abort();
}

}
