#include "checkpoint/json_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json_depth.h"

namespace hunch {
namespace {

using Json = nlohmann::json;

std::string_view kind_of(const Json& value) {
  return value.is_boolean()       ? "true or false"
      : value.is_number_integer() ? "a whole number"
      : value.is_number()         ? "a number"
      : value.is_string()         ? "a string"
      : value.is_array()          ? "a list"
      : value.is_object()         ? "an object"
                                  : "null";
}

bool fits_int64(const Json& value) {
  return value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(INT64_MAX));
}

bool is_string(const Json& value) { return value.is_string(); }

}

struct JsonConfig::Tree {
  Json root;

  // Null where the key, or an object on the way to it, is absent; otherwise the value, which may be of any type.
  Result<const Json*> find(const JsonConfig& config, std::string_view key) const {
    const Json* at = &root;
    for (size_t begin = 0; begin <= key.size();) {
      if (!at->is_object()) return config.wrong(key.substr(0, begin - 1), "must be an object, not {}", kind_of(*at));
      const size_t end = std::min(key.find('.', begin), key.size());
      const auto child = at->find(std::string(key.substr(begin, end - begin)));
      if (child == at->end() || child->is_null()) return nullptr;
      at = &*child;
      begin = end + 1;
    }
    return at;
  }
  // The same; an error where the value is not what `fits` asks for.
  Result<const Json*> find(
      const JsonConfig& config, std::string_view key, std::string_view what, bool (*fits)(const Json&)) const {
    HUNCH_TRY(const Json* value, find(config, key));
    if (value && !fits(*value)) return config.wrong(key, "must be {}, not {}", what, kind_of(*value));
    return value;
  }
  template <class T>
  Result<std::optional<T>> scalar(
      const JsonConfig& config, std::string_view key, std::string_view what, bool (*fits)(const Json&)) const {
    HUNCH_TRY(const Json* value, find(config, key, what, fits));
    return value ? std::optional<T>(value->get<T>()) : std::nullopt;
  }
  template <class T>
  Result<std::optional<std::vector<T>>> list(
      const JsonConfig& config, std::string_view key, std::string_view what, bool (*fits)(const Json&)) const {
    HUNCH_TRY(const Json* value, find(config, key, what, [](const Json& v) { return v.is_array(); }));
    if (!value) return std::optional<std::vector<T>>();
    std::vector<T> out;
    for (const Json& element : *value) {
      if (!fits(element)) return config.wrong(key, "must be {}, but holds {}", what, kind_of(element));
      out.push_back(element.get<T>());
    }
    return std::optional(std::move(out));
  }
};

JsonConfig::JsonConfig(std::unique_ptr<const Tree> tree, std::string source)
    : tree_(std::move(tree)), source_(std::move(source)) {}
JsonConfig::JsonConfig(JsonConfig&&) noexcept = default;
JsonConfig& JsonConfig::operator=(JsonConfig&&) noexcept = default;
JsonConfig::~JsonConfig() = default;

Result<JsonConfig> JsonConfig::parse(std::string_view text, std::string source) {
  if (nested_deeper_than(text, kMostJsonDepth)) return failure("{}: nested deeper than {}", source, kMostJsonDepth);
  Json json = text.empty() ? Json::object() : Json::parse(text, nullptr, false);
  if (json.is_discarded()) return failure("{}: not valid JSON", source);
  if (!json.is_object()) return failure("{}: must be a JSON object, not {}", source, kind_of(json));
  return JsonConfig(std::make_unique<const Tree>(Tree{std::move(json)}), std::move(source));
}

bool JsonConfig::has(std::string_view key) const {
  const auto found = tree_->find(*this, key);
  return found.ok() && found.value() != nullptr;
}

Result<std::optional<int64_t>> JsonConfig::integer(std::string_view key) const {
  HUNCH_TRY(const Json* value, tree_->find(*this, key, "a whole number", [](const Json& v) { return v.is_number_integer(); }));
  if (value && !fits_int64(*value)) return wrong(key, "out of range");
  return value ? std::optional(value->get<int64_t>()) : std::nullopt;
}

Result<std::optional<int64_t>> JsonConfig::integer(std::string_view key, int64_t least, int64_t most) const {
  HUNCH_TRY(const auto value, integer(key));
  if (value && (*value < least || *value > most))
    return wrong(key, "{} is out of range, {} to {} are possible", *value, least, most);
  return value;
}

Result<std::optional<double>> JsonConfig::number(std::string_view key) const {
  return tree_->scalar<double>(
      *this, key, "a finite number", [](const Json& v) { return v.is_number() && std::isfinite(v.get<double>()); });
}

Result<std::optional<bool>> JsonConfig::boolean(std::string_view key) const {
  return tree_->scalar<bool>(*this, key, "true or false", [](const Json& v) { return v.is_boolean(); });
}

Result<std::optional<std::string>> JsonConfig::text(std::string_view key) const {
  return tree_->scalar<std::string>(*this, key, "a string", is_string);
}

Result<std::optional<std::vector<int64_t>>> JsonConfig::integers(std::string_view key) const {
  return tree_->list<int64_t>(*this, key, "a list of whole numbers", fits_int64);
}

Result<std::optional<std::vector<std::string>>> JsonConfig::texts(std::string_view key) const {
  return tree_->list<std::string>(*this, key, "a list of strings", is_string);
}

Result<std::optional<std::string>> JsonConfig::object(std::string_view key) const {
  HUNCH_TRY(const Json* value, tree_->find(*this, key, "an object", [](const Json& v) { return v.is_object(); }));
  if (!value) return std::optional<std::string>();
  // Texts of a file may hold broken UTF-8, on which dump would throw.
  return std::optional(value->dump(-1, ' ', false, Json::error_handler_t::replace));
}

}
