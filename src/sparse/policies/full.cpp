// full: drafts read everything. The ceiling of acceptance (1 apart from rounding under rule match) and a self-test, never fast.
#include "sparse/policy.h"

namespace hunch {
namespace {

class Full final : public SparsePolicy {
 public:
  Guarantee unverified() const override { return Guarantee::Stream; }
};

Result<std::unique_ptr<SparsePolicy>> make_full(const SparsePolicy::Setup&) { return std::unique_ptr<SparsePolicy>(new Full); }

const Register<SparsePolicy> full{"full", "every entry: the ceiling of acceptance, and a self-test", make_full};

}
}
