// Drafting: the instances of proposers and policies, shared by all requests of the same settings. Made at the first; those that
// nobody uses any more make room for new ones.
#pragma once

#include <list>

#include "draft/proposer.h"
#include "sparse/policy.h"

namespace hunch {

class EngineParts;

class Drafting {
 public:
  explicit Drafting(EngineParts& parts) : parts_(parts) {}

  // Each acquire is paired with a release; the pointer is good in between. Errors: settings that the part refuses; too many
  // different settings in use at once.
  Result<Proposer*> acquire_proposer(const std::string& name, const ProposerOptions&, std::optional<DType> draft_weights);
  Result<SparsePolicy*> acquire_policy(const std::string& name, const PolicyOptions&);
  void release(const Proposer*);
  void release(const SparsePolicy*);
  size_t bytes() const;

 private:
  template <class Part>
  struct Shared {
    std::string key;
    std::unique_ptr<Part> part;
    int users = 0;
  };
  template <class Part, class Make>
  Result<Part*> acquire(std::list<Shared<Part>>& all, const std::string& key, Make&& make);
  template <class Part>
  static void release(std::list<Shared<Part>>& all, const Part* part);

  EngineParts& parts_;
  std::list<Shared<Proposer>> proposers_;  // least recently acquired first
  std::list<Shared<SparsePolicy>> policies_;
};

}
