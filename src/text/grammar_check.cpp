// The scan follows schemas only where a schema may stand: examples, defaults and enumerated values are data.
#include "text/grammar_check.h"

#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/failure.h"
#include "base/json_depth.h"
#include "text/excerpt.h"
#include "text/unicode.h"

namespace hunch {
namespace {

using simdjson::SUCCESS;
using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

// What no automaton of ours enforces. A schema that has it is refused rather than kept in part.
constexpr std::array kUnsupported = {"not", "if", "then", "else", "dependentRequired", "dependencies", "contains", "minContains",
    "maxContains", "dependentSchemas", "uniqueItems", "$dynamicRef", "$recursiveRef"};
// The automaton looks at the first of these that it finds and at nothing beside it.
constexpr std::array kLeading = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};
// It tells the type by these where none is said.
constexpr std::array kTelling = {
    "type", "properties", "additionalProperties", "unevaluatedProperties", "items", "prefixItems", "unevaluatedItems"};
// Formats of the standard; others, as of OpenAPI, say nothing about the text.
constexpr std::array kUnsupportedFormats = {
    "json-pointer", "relative-json-pointer", "regex", "idn-email", "idn-hostname", "iri", "iri-reference"};
constexpr std::array kFormats = {
    "email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri", "uri-reference", "uri-template"};
constexpr std::array kConstraints = {"type", "properties", "required", "additionalProperties", "patternProperties",
    "propertyNames", "minProperties", "items", "prefixItems", "minItems", "maxItems", "minLength", "maxLength", "maxProperties",
    "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};
constexpr std::array kCounts = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"};
constexpr std::array kBounds = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"};
constexpr std::array<std::string_view, 7> kTypes = {"string", "integer", "number", "boolean", "null", "array", "object"};
constexpr std::array kMaps = {"properties", "patternProperties", "$defs", "definitions"};
constexpr std::array kLists = {"anyOf", "oneOf", "allOf", "prefixItems"};
constexpr std::array kSingles = {"items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames"};

template <class... T>
Error refuse(std::string_view where, fmt::format_string<T...> why, T&&... values) {
  return usage_error("json_schema, at {}: {}", where.empty() ? "the root" : where, fmt::format(why, std::forward<T>(values)...));
}

class SchemaCheck {
 public:
  SchemaCheck(element root, std::set<std::string>* patterns) : root_(root), patterns_(patterns) {}

  Status check(element schema, const std::string& where) {
    if (++values_ > kMaxSchemaValues) return refuse(where, "schema_too_complex: more than {} schemas in it", kMaxSchemaValues);
    if (schema.is_bool()) return {};
    object members;
    if (schema.get(members) != SUCCESS) return refuse(where, "a schema must be an object, true or false");
    HUNCH_OK(check_supported(members, where));
    HUNCH_OK(check_leading(members, where));
    HUNCH_OK(check_types(members, where));
    HUNCH_OK(check_names(members, where));
    HUNCH_OK(check_sizes(members, where));
    HUNCH_OK(check_reference(schema, where));
    for (const auto [key, value] : members) HUNCH_OK(check_below(key, value, where + "/" + std::string(key)));
    return {};
  }

 private:
  static bool has(object members, const char* key) {
    element value;
    return members[key].get(value) == SUCCESS;
  }
  // Neither left out nor false.
  static bool says(object members, const char* key) {
    element value;
    return members[key].get(value) == SUCCESS && !(value.is_bool() && !bool(value));
  }

  static bool is_integer(object members) {
    std::string_view type;
    return members["type"].get(type) == SUCCESS && type == "integer";
  }

  static Status check_types(object members, const std::string& where) {
    element type;
    if (members["type"].get(type) != SUCCESS) return {};
    array several;
    if (type.get(several) == SUCCESS && several.size() == 0) return refuse(where, "'type' lists no type: nothing could be said");
    const auto known = [](element one) {
      std::string_view name;
      return one.get(name) == SUCCESS && std::ranges::find(kTypes, name) != kTypes.end();
    };
    if (type.is_array() ? std::ranges::all_of(several, known) : known(type)) return {};
    return refuse(where, "'type' must name some of {}", fmt::join(kTypes, ", "));
  }

  static Status check_supported(object members, const std::string& where) {
    for (const char* key : kUnsupported)
      if (says(members, key))
        return refuse(where,
            "'{}' is not supported; state it by other keywords, or leave it out and check the "
            "output afterwards",
            key);
    if ((has(members, "pattern") || has(members, "format")) && (has(members, "minLength") || has(members, "maxLength")))
      return refuse(where, "lengths beside a pattern or a format are not supported; put the length into the pattern");
    if (has(members, "multipleOf") && !is_integer(members))
      return refuse(where, "'multipleOf' is supported for type integer only");
    if (std::string_view format; members["format"].get(format) == SUCCESS) {
      for (const char* name : kUnsupportedFormats)
        if (format == name) return refuse(where, "format '{}' is not supported; say it by a 'pattern'", name);
      if (has(members, "pattern") && std::ranges::find(kFormats, format) != kFormats.end())
        return refuse(where, "a pattern beside a format is not supported; leave one out");
    }
    return check_range(members, where);
  }

  // Numbers between two are written with at most six decimals.
  static Status check_range(object members, const std::string& where) {
    for (const char* key : kBounds) {
      element value;
      double bound = 0;
      if (members[key].get(value) != SUCCESS) continue;
      if (value.get(bound) != SUCCESS) return refuse(where, "'{}' must be a number", key);
      if (is_integer(members) && (bound != std::nearbyint(bound) || std::abs(bound) >= 0x1p63))
        return refuse(where, "'{}' of an integer must be a whole number below 2^63", key);
      if (has(members, "multipleOf")) return refuse(where, "'multipleOf' beside '{}' is not supported; leave one out", key);
    }
    const double unit = is_integer(members) ? 1 : 1e6;
    double least = -INFINITY, most = INFINITY, x = 0;  // in units
    const auto bound = [&](const char* key) {
      if (members[key].get(x) != SUCCESS) return false;
      x *= unit;
      if (std::abs(x - std::nearbyint(x)) < 1e-9 * std::abs(x)) x = std::nearbyint(x);
      return true;
    };
    if (bound("minimum")) least = std::ceil(x);
    if (bound("exclusiveMinimum")) least = std::max(least, std::floor(x) + 1);
    if (bound("maximum")) most = std::floor(x);
    if (bound("exclusiveMaximum")) most = std::min(most, std::ceil(x) - 1);
    if (least > most) return refuse(where, "no number of at most six decimals lies between the bounds");
    return {};
  }

  // Names that an object must or may have. The automaton spells out `properties` and drops what is required beside them; of other
  // names it knows nothing but their form, not even which it has taken already.
  static Status check_names(object members, const std::string& where) {
    object properties;
    const bool named = members["properties"].get(properties) == SUCCESS && properties.size() > 0;
    if (array required; members["required"].get(required) == SUCCESS)
      for (const element name : required)
        if (std::string_view text; name.get(text) == SUCCESS && (!named || properties[text].error() != SUCCESS))
          return refuse(where, "'required' names {}, which is not among 'properties'; add it there", excerpt(text));
    const bool others = says(members, "additionalProperties") || says(members, "unevaluatedProperties");
    object by_pattern;
    const bool patterns = members["patternProperties"].get(by_pattern) == SUCCESS;
    const bool formed = has(members, "propertyNames");
    if (patterns && (named || others || formed || by_pattern.size() > 1))
      return refuse(where, "'patternProperties' of one expression, with no names beside them, are supported; use 'properties'");
    if (formed && named)
      return refuse(where, "'propertyNames' beside 'properties' is not supported; leave out the names that do not fit");
    if (int64_t least = 0; members["minProperties"].get(least) == SUCCESS && least > 1 &&
        (others || patterns || formed || !has(members, "properties")))
      return refuse(where, "'minProperties' above 1 is supported for named 'properties' only");
    return {};
  }

  static Status check_leading(object members, const std::string& where) {
    const char* leading = nullptr;
    for (const char* key : kLeading)
      if (has(members, key)) {
        if (leading) return refuse(where, "'{}' beside '{}' is not supported; use one of them", key, leading);
        leading = key;
      }
    if (!leading) {
      for (const char* key : kTelling)
        if (has(members, key)) return {};
      for (const char* key : kConstraints)
        if (has(members, key)) return refuse(where, "'{}' without a 'type' is not supported; say the type", key);
      return {};
    }
    if (array parts; members["allOf"].get(parts) == SUCCESS && parts.size() != 1)
      return refuse(where, "'allOf' of more than one schema is not supported; merge them");
    // A type beside listed values is common and only says what the values are.
    const bool listed = std::string_view(leading) == "const" || std::string_view(leading) == "enum";
    for (const char* key : kConstraints)
      if (has(members, key) && !(listed && std::string_view(key) == "type"))
        return refuse(where, "'{}' beside '{}' is not supported; put it into the schemas of '{}'", key, leading, leading);
    return listed ? check_listed(members, where) : Status{};
  }

  static bool fits(std::string_view type, element value) {
    if (type == "string") return value.is_string();
    if (type == "integer") return value.is_int64() || value.is_uint64();
    if (type == "number") return value.is_number();
    if (type == "boolean") return value.is_bool();
    if (type == "null") return value.is_null();
    if (type == "array") return value.is_array();
    return type == "object" && value.is_object();
  }

  // Numbers that would come out rounded.
  static bool has_large(element value) {
    if (object members; value.get(members) == SUCCESS)
      return std::ranges::any_of(members, [](const auto& member) { return has_large(member.value); });
    if (array values; value.get(values) == SUCCESS) return std::ranges::any_of(values, has_large);
    return value.is_uint64() && !value.is_int64();
  }

  static Status check_listed(object members, const std::string& where) {
    for (const char* key : {"const", "enum"})
      if (element value; members[key].get(value) == SUCCESS && has_large(value))
        return refuse(where, "'{}' has a whole number above 9223372036854775807; make it a string", key);
    element type;
    if (members["type"].get(type) != SUCCESS) return {};
    const auto allowed = [&](element value) {
      std::string_view one;
      if (type.get(one) == SUCCESS) return fits(one, value);
      array several;
      if (type.get(several) != SUCCESS) return false;
      return std::ranges::any_of(several, [&](element t) { return t.get(one) == SUCCESS && fits(one, value); });
    };
    element value;
    array values;
    bool good = true;
    if (members["const"].get(value) == SUCCESS) good = allowed(value);
    if (members["enum"].get(values) == SUCCESS) good = std::ranges::all_of(values, allowed);
    if (good) return {};
    return refuse(where, "a value of 'const' or 'enum' is not of the 'type' beside it; remove the value or the type");
  }

  Status check_sizes(object members, const std::string& where) {
    for (const char* key : kCounts) {
      element value;
      if (members[key].get(value) != SUCCESS) continue;
      int64_t count = 0;
      if (value.get(count) != SUCCESS || count < 0) return refuse(where, "'{}' must be a whole number, 0 or more", key);
      if (count > kMaxRepetitions)
        return refuse(where, "schema_too_complex: '{}' is {}; at most {} is possible", key, count, kMaxRepetitions);
    }
    for (size_t i = 0; i < kCounts.size(); i += 2)
      if (int64_t least = 0, most = 0;
          members[kCounts[i]].get(least) == SUCCESS && members[kCounts[i + 1]].get(most) == SUCCESS && least > most)
        return refuse(where, "'{}' is {}, more than '{}', which is {}", kCounts[i], least, kCounts[i + 1], most);
    if (array values; members["enum"].get(values) == SUCCESS) {
      enumerated_ += std::ssize(values);
      if (values.size() == 0) return refuse(where, "'enum' has no values: nothing could be said");
      if (enumerated_ > kMaxEnumValues)
        return refuse(where, "schema_too_complex: more than {} enumerated values", kMaxEnumValues);
    }
    if (std::string_view pattern; members["pattern"].get(pattern) == SUCCESS) return check_pattern("pattern", pattern, where);
    return {};
  }

  Status check_pattern(std::string_view key, std::string_view pattern, const std::string& where) {
    if (patterns_) patterns_->emplace(pattern);
    if (const Status status = check_repetitions(key, pattern); !status.ok()) return refuse(where, "{}", status.error().message);
    return {};
  }

  Result<element> resolve(element reference, const std::string& where) const {
    std::string_view to;
    if (reference.get(to) != SUCCESS) return refuse(where, "'$ref' must be a text");
    if (to == "#") return root_;
    element found;
    if (!to.starts_with("#/")) return refuse(where, "'$ref' must point into this schema (#/...); nothing is fetched");
    if (root_.at_pointer(to.substr(1)).get(found) != SUCCESS) return refuse(where, "'$ref' points to nothing: {}", to);
    return found;
  }

  // References that lead to references must come to an end.
  Status check_reference(element schema, const std::string& where) const {
    element reference;
    for (int hops = 0; schema.is_object() && schema["$ref"].get(reference) == SUCCESS; ++hops) {
      if (hops == kMaxSchemaDepth) return refuse(where, "'$ref' leads in a circle");
      HUNCH_TRY(schema, resolve(reference, where));
    }
    return {};
  }

  Status check_below(std::string_view key, element value, const std::string& where) {
    const auto among = [&](const auto& keys) { return std::ranges::find(keys, key) != keys.end(); };
    if (among(kMaps)) {
      object members;
      if (value.get(members) != SUCCESS) return refuse(where, "must be an object of schemas");
      for (const auto [name, schema] : members) {
        if (key == "patternProperties") HUNCH_OK(check_pattern(key, name, where));
        HUNCH_OK(check(schema, where + "/" + std::string(name)));
      }
    } else if (array schemas; (among(kLists) || key == "items") && value.get(schemas) == SUCCESS) {
      size_t at = 0;
      if (key == "anyOf" && schemas.size() == 0) return refuse(where, "has no schemas: nothing could be said");
      for (const element schema : schemas) HUNCH_OK(check(schema, fmt::format("{}/{}", where, at++)));
    } else if (among(kLists)) {
      return refuse(where, "must be a list of schemas");
    } else if (among(kSingles)) {
      return check(value, where);
    }
    return {};
  }

  element root_;
  std::set<std::string>* patterns_;
  int64_t values_ = 0, enumerated_ = 0;
};

Status check_schema(const std::string& text, std::set<std::string>* patterns) {
  if (nested_deeper_than(text, kMaxSchemaDepth))
    return usage_error("json_schema: schema_too_complex: values nested deeper than {}", kMaxSchemaDepth);
  simdjson::dom::parser parser;
  element root;
  if (const auto error = parser.parse(text).get(root); error != SUCCESS)
    return usage_error("json_schema: not valid JSON: {}", simdjson::error_message(error));
  if (root.is_bool() && !bool(root)) return usage_error("json_schema: the schema false allows no output at all");
  return SchemaCheck(root, patterns).check(root, "");
}

// `named`: members are schemas by name.
void open_contents(nlohmann::ordered_json& schema, bool named = false) {
  if (!schema.is_structured()) return;
  const auto allow = [&](const char* type, const char* key, auto... told) {
    if (!named && schema.is_object() && schema.contains("type") && schema["type"].dump().find(type) != std::string::npos &&
        !(schema.contains(told) || ...))
      schema[key] = true;
  };
  allow("array", "items", "items", "prefixItems", "unevaluatedItems");
  allow("object", "additionalProperties", "properties", "patternProperties", "propertyNames", "additionalProperties",
      "unevaluatedProperties");
  for (auto& [key, below] : schema.items()) {
    if (!named && key == "prefixItems")
      for (auto& item : below)
        if (item == true) item = nlohmann::ordered_json::object();
    const auto among = [&](const auto& keys) { return std::ranges::find(keys, key) != keys.end(); };
    if (named || schema.is_array() || among(kMaps) || among(kLists) || among(kSingles))
      open_contents(below, !named && among(kMaps));
  }
}

// The number behind `at`, or -1; moves `at` past it.
int64_t number(std::string_view text, size_t& at) {
  if (at >= text.size() || text[at] < '0' || text[at] > '9') return -1;
  int64_t value = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at)
    value = std::min<int64_t>(value * 10 + (text[at] - '0'), kMaxRepetitions + 1);
  return value;
}

// An anchor that is not at the end of the whole expression would have to mean something; it is refused instead.
Status check_anchors(std::string_view pattern) {
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\') ++i;
    else if (in_class) in_class = c != ']';
    else if (c == '[') in_class = true;
    else if ((c == '^' && i > 0) || (c == '$' && i + 1 < pattern.size()))
      return usage_error("regex: '{}' at byte {} is not supported; the whole output must match anyway", c, i);
  }
  return {};
}

}

std::string open_schema(const std::string& text) {
  auto schema = nlohmann::ordered_json::parse(text, nullptr, false);
  open_contents(schema);
  return schema.is_discarded() ? text : schema.dump();
}

Status check_repetitions(std::string_view what, std::string_view pattern) {
  // Copies made by the counts inside the group that is open now, and by those of the groups around it. What a count behind a
  // group repeats is what stands in the group.
  std::vector<int64_t> copies{1};
  int64_t last = 1;  // of the item before the cursor
  bool in_class = false;
  char in_text = 0;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\') {
      ++i;
      if (!in_text && !in_class) last = 1;
    } else if (in_text) {
      if (c == in_text) in_text = 0;
    } else if (in_class) {
      in_class = c != ']';
    } else if (c == '[') {
      in_class = true, last = 1;
    } else if (c == '"' && what == "grammar") {
      in_text = c, last = 1;
    } else if (c == '(') {
      copies.push_back(1);
      if (copies.size() > kMaxSchemaDepth)
        return usage_error("{}: schema_too_complex: groups nested deeper than {}", what, kMaxSchemaDepth);
    } else if (c == ')' && copies.size() > 1) {
      last = copies.back();
      copies.pop_back();
      copies.back() = std::max(copies.back(), last);
    } else if (c == '{') {
      size_t at = i + 1;
      int64_t most = number(pattern, at);
      if (most < 0 && !(at < pattern.size() && pattern[at] == ',')) continue;
      most = std::max<int64_t>(most, 1);
      if (at < pattern.size() && pattern[at] == ',') most = std::max(most, number(pattern, ++at));
      if (most > kMaxRepetitions || last * most > kMaxRepetitions)
        return usage_error(
            "{}: schema_too_complex: the repetition at byte {} makes more than {} copies", what, i, kMaxRepetitions);
      last *= most;
      copies.back() = std::max(copies.back(), last);
      i = at;  // its digits are no items
    } else if (c != '*' && c != '+' && c != '?' && c != ' ') {
      last = 1;
    }
  }
  return what == "grammar" ? Status{} : check_anchors(pattern);
}

Status check_structured(const StructuredOutput& wanted, std::set<std::string>* patterns) {
  using Kind = StructuredOutput::Kind;
  const char* name = wanted.kind == Kind::JsonSchema ? "json_schema" : wanted.kind == Kind::Regex ? "regex" : "grammar";
  const bool has_text = wanted.kind == Kind::JsonSchema || wanted.kind == Kind::Regex || wanted.kind == Kind::Grammar;
  if (has_text) {
    if (wanted.text.empty()) return usage_error("{} is empty; say what the output must look like", name);
    if (wanted.text.size() > kMaxGrammarBytes)
      return usage_error("{}: schema_too_complex: {} bytes; at most {} are possible", name, wanted.text.size(), kMaxGrammarBytes);
    if (const auto at = first_invalid_utf8(wanted.text)) return usage_error("{} is not valid UTF-8 from byte {} on", name, *at);
    if (wanted.text.find('\0') != wanted.text.npos) return usage_error("{} has a NUL byte", name);
  }
  switch (wanted.kind) {
    case Kind::JsonSchema: return check_schema(wanted.text, patterns);
    case Kind::Regex:
    case Kind::Grammar: return check_repetitions(name, wanted.text);
    case Kind::Choice: {
      if (wanted.choices.empty()) return usage_error("choice has no texts; give at least one");
      if (wanted.choices.size() > kMaxChoices)
        return usage_error("choice: schema_too_complex: {} texts; at most {} are possible", wanted.choices.size(), kMaxChoices);
      size_t bytes = 0;
      for (size_t i = 0; i < wanted.choices.size(); ++i) {
        const std::string& text = wanted.choices[i];
        if (text.empty()) return usage_error("choice: text {} is empty", i);
        if (const auto at = first_invalid_utf8(text))
          return usage_error("choice: text {} is not valid UTF-8 from byte {} on", i, *at);
        if (text.find('\0') != text.npos) return usage_error("choice: text {} has a NUL byte", i);
        bytes += text.size();
      }
      if (bytes > kMaxGrammarBytes)
        return usage_error("choice: schema_too_complex: {} bytes; at most {} are possible", bytes, kMaxGrammarBytes);
      return {};
    }
    case Kind::None:
    case Kind::JsonObject: return {};
  }
  return usage_error("unknown kind of structured output");
}

}
