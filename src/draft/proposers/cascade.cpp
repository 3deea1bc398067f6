// cascade: look-ups first, since they cost nothing; a pass of the model over its selection where they find nothing worth a verify
// row. Both are other proposers, made by name; a tree comes from one of them and has one law.
#include <fmt/format.h>

#include "draft/proposer.h"

namespace hunch {
namespace {

constexpr std::string_view kName = "cascade", kThen = "self";
// A look-up of one token is mostly chance, and takes the round from a drafter that would have offered more.
constexpr int kWorthwhile = 2;

class Cascade final : public Proposer {
 public:
  Cascade(std::unique_ptr<Proposer> first, std::unique_ptr<Proposer> then, int max_sequences)
      : first_(std::move(first)), then_(std::move(then)) {
    rest_.reserve(max_sequences);
  }

  bool uses_policy() const override { return then_->uses_policy(); }

  void open(const Sequence& sequence) override {
    first_->open(sequence);
    then_->open(sequence);
  }
  void propose(std::span<const DraftTask> tasks) override {
    for (const DraftTask& task : tasks) task.tree->passes = 0;
    first_->propose(tasks);
    rest_.clear();
    for (const DraftTask& task : tasks)
      if (task.tree->size < std::min(kWorthwhile, task.limits.max_tokens)) rest_.push_back(task);
    if (!rest_.empty()) then_->propose(rest_);
  }
  void observe(const Sequence& sequence, const Verdict& verdict) override {
    first_->observe(sequence, verdict);
    then_->observe(sequence, verdict);
  }
  void close(Slot slot) override {
    first_->close(slot);
    then_->close(slot);
  }

 private:
  std::unique_ptr<Proposer> first_, then_;
  std::vector<DraftTask> rest_;
};

Proposer::Made make_cascade(const Proposer::Setup& setup) {
  const std::string& name = setup.options.cascade_first;
  const auto* part = name == kName || name == kThen || name == "none" ? nullptr : Register<Proposer>::find(name);
  if (!part) return usage_error(fmt::format("a cascade cannot start with proposer '{}'; use ngram or suffix", name));
  HUNCH_TRY(auto first, part->make(setup));
  HUNCH_TRY(auto then, Register<Proposer>::find(kThen)->make(setup));
  return std::unique_ptr<Proposer>(new Cascade(std::move(first), std::move(then), setup.max_sequences));
}

const Register<Proposer> cascade{kName, "look-ups, and self where they find nothing", make_cascade};

}
}
