// JsonConfig: a configuration file with typed access by dotted key ("eagle_config.use_aux_hidden_state"). A null counts as
// absent; another type is an error that names file, key and both types. Used for drafters, whose keys differ by publisher.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/failure.h"
#include "checkpoint/quote.h"

namespace hunch {

class JsonConfig {
 public:
  // `source` stands in messages. An empty text is an empty object.
  static Result<JsonConfig> parse(std::string_view text, std::string source);
  JsonConfig(JsonConfig&&) noexcept;
  JsonConfig& operator=(JsonConfig&&) noexcept;
  ~JsonConfig();

  bool has(std::string_view key) const;  // there and not null
  Result<std::optional<int64_t>> integer(std::string_view key) const;
  Result<std::optional<int64_t>> integer(std::string_view key, int64_t least, int64_t most) const;
  Result<std::optional<double>> number(std::string_view key) const;  // finite
  Result<std::optional<bool>> boolean(std::string_view key) const;
  Result<std::optional<std::string>> text(std::string_view key) const;
  Result<std::optional<std::vector<int64_t>>> integers(std::string_view key) const;
  Result<std::optional<std::vector<std::string>>> texts(std::string_view key) const;
  Result<std::optional<std::string>> object(std::string_view key) const;  // the object's own text
  Error wrong(std::string_view key, std::string_view what) const {        // "config.json: draft_vocab_size: what"
    return failure("{}: {}: {}", source_, quote(key), what);
  }
  template <class First, class... Rest>
  Error wrong(std::string_view key, fmt::format_string<First, Rest...> what, First&& first, Rest&&... rest) const {
    return wrong(key, fmt::format(what, std::forward<First>(first), std::forward<Rest>(rest)...));
  }

  const std::string& source() const { return source_; }

 private:
  struct Tree;
  JsonConfig(std::unique_ptr<const Tree> tree, std::string source);
  std::unique_ptr<const Tree> tree_;
  std::string source_;
};

}
