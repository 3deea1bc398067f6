// Schemas, some of our own and any number drawn; and whether a JSON value fits one. The validator knows the keywords used here,
// and was written without a look at how the engine keeps them.
#pragma once

#include <nlohmann/json.hpp>

#include "engine/test_engines.h"

namespace hunch::test {

using Json = nlohmann::ordered_json;

inline bool is_of_type(const Json& value, const std::string& type) {
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "array") return value.is_array();
  return type == "object" && value.is_object();
}

inline size_t characters(const std::string& utf8) {
  size_t count = 0;
  for (const char c : utf8) count += (uint8_t(c) & 0xC0) != 0x80;
  return count;
}

// `root` is what references point into.
inline bool fits(const Json& value, const Json& schema, const Json& root) {
  if (schema.is_boolean()) return schema.get<bool>();
  if (schema.contains("$ref")) return fits(value, root.at(Json::json_pointer(schema["$ref"].get<std::string>().substr(1))), root);
  const auto any = [&](const Json& all) {
    return std::ranges::any_of(all, [&](const Json& one) { return fits(value, one, root); });
  };
  if (schema.contains("anyOf") && !any(schema["anyOf"])) return false;
  if (schema.contains("const") && value != schema["const"]) return false;
  if (schema.contains("enum") && std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end())
    return false;
  if (schema.contains("type")) {
    const Json& type = schema["type"];
    const bool good = type.is_array() ? std::ranges::any_of(type, [&](const Json& t) { return is_of_type(value, t); })
                                      : is_of_type(value, type);
    if (!good) return false;
  }
  if (value.is_number()) {
    if (schema.contains("minimum") && value.get<double>() < schema["minimum"].get<double>()) return false;
    if (schema.contains("maximum") && value.get<double>() > schema["maximum"].get<double>()) return false;
  }
  if (value.is_string()) {
    const size_t length = characters(value.get<std::string>());
    if (length < schema.value("minLength", size_t(0)) || length > schema.value("maxLength", size_t(1) << 30)) return false;
  }
  if (value.is_array()) {
    if (value.size() < schema.value("minItems", size_t(0)) || value.size() > schema.value("maxItems", size_t(1) << 30))
      return false;
    if (schema.contains("items"))
      for (const Json& item : value)
        if (!fits(item, schema["items"], root)) return false;
  }
  if (value.is_object()) {
    const Json none = Json::object(), properties = schema.value("properties", none);
    for (const auto& name : schema.value("required", Json::array()))
      if (!value.contains(name.get<std::string>())) return false;
    for (const auto& [name, member] : value.items()) {
      if (properties.contains(name)
              ? !fits(member, properties[name], root)
              : schema.contains("additionalProperties") && !fits(member, schema["additionalProperties"], root))
        return false;
    }
  }
  return true;
}

// A schema whose outputs are short, so that a model that knows nothing comes to an end.
inline Json drawn_schema(Dice& dice, int depth) {
  switch (dice.below(depth > 0 ? 10 : 6)) {
    case 0: return {{"enum", Json::array({"red", "green", 7, nullptr, true})}};
    case 1: return {{"const", dice.below(2) ? Json("é\n\"x\"") : Json(dice.below(100))}};
    case 2: return {{"type", "boolean"}};
    case 3: {
      const int least = dice.below(50) - 25;
      return {{"type", "integer"}, {"minimum", least}, {"maximum", least + dice.below(200)}};
    }
    case 4: {
      const int least = dice.below(3);
      return {{"type", "string"}, {"minLength", least}, {"maxLength", least + dice.below(4)}};
    }
    case 5: return {{"type", Json::array({"null", "boolean"})}};
    case 6: return {{"anyOf", Json::array({drawn_schema(dice, depth - 1), drawn_schema(dice, depth - 1)})}};
    case 7: return {{"type", "array"}, {"items", drawn_schema(dice, depth - 1)}, {"minItems", dice.below(2)}, {"maxItems", 2}};
    default: {
      static const char* const kNames[] = {"a", "name", "id", "x y", "größe", "n_0"};
      Json properties = Json::object(), required = Json::array();
      const int members = 1 + dice.below(3), first = dice.below(6);
      for (int i = 0; i < members; ++i) {
        const char* name = kNames[(first + i) % 6];
        properties[name] = drawn_schema(dice, depth - 1);
        if (dice.below(3)) required.push_back(name);
      }
      return {{"type", "object"}, {"properties", properties}, {"required", required}, {"additionalProperties", false}};
    }
  }
}

inline const std::vector<std::string>& own_schemas() {
  static const std::vector<std::string> all{
      R"({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]})",
      R"({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]})",
      R"({"$defs": {"p": {"type": "array", "items": {"enum": [0, 1]}, "minItems": 2, "maxItems": 2}},
          "type": "object", "properties": {"from": {"$ref": "#/$defs/p"}, "to": {"$ref": "#/$defs/p"}}, "required": ["from", "to"]})",
      R"({"type": "array", "items": {"type": "array", "items": {"type": "null"}, "maxItems": 2}, "maxItems": 2})",
      R"({"enum": ["a \"quoted\" text", "\u00e9\u4e2d\ud83d\ude00", ""]})",
      R"({"const": {"a": [1, {"b": null}]}})",
      R"({"type": "object", "properties": {}, "additionalProperties": false})",
      R"({"type": "number"})",
      R"({"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2})",
      R"({"type": "string", "format": "date"})",
  };
  return all;
}

// `count` schemas: our own, then drawn ones.
inline std::vector<std::string> schemas(int count) {
  std::vector<std::string> out = own_schemas();
  Dice dice(17);
  while (int(out.size()) < count) out.push_back(drawn_schema(dice, 2).dump());
  return out;
}

}
