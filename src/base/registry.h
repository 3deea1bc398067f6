// Parts by name. An interface I declares a nested `Setup`; a part ends with one line:
//   static const Register<Proposer> ngram{"ngram", "prompt lookup", make_ngram};
// and is thereby known to the command line and to the conformance suite. Registration runs before main, reads after it.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hunch {

template <class I>
class Register {
 public:
  using Make = Result<std::unique_ptr<I>> (*)(const typename I::Setup&);
  struct Part {
    std::string_view name, about;
    Make make;
  };

  Register(std::string_view name, std::string_view about, Make make) {
    auto& list = parts();
    auto at = list.begin();
    while (at != list.end() && at->name < name) ++at;  // kept sorted: link order must not show in any listing
    list.insert(at, Part{name, about, make});
  }

  static const std::vector<Part>& all() { return parts(); }
  static const Part* find(std::string_view name) {
    for (const Part& part : parts())
      if (part.name == name) return &part;
    return nullptr;
  }
  static std::string names() {  // "full, streamingllm, vegas"
    std::string out;
    for (const Part& part : parts()) out += (out.empty() ? "" : ", ") + std::string(part.name);
    return out;
  }

 private:
  static std::vector<Part>& parts() {
    static std::vector<Part> list;
    return list;
  }
};

}
