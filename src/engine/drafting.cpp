#include "engine/drafting.h"

#include "base/failure.h"
#include "engine/parts.h"

namespace hunch {
namespace {

// Different settings alive at once, of proposers and of policies: in use, and kept for who asks next.
constexpr size_t kMostUsed = 256, kMostIdle = 4;

std::string shown(const std::vector<uint8_t>& skipped) {
  std::string out;
  for (const uint8_t s : skipped) out += s ? 'x' : '.';
  return out;
}

std::string key_of(const std::string& name, const PolicyOptions& o) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", name, o.ratio, o.min_tokens, o.sinks, o.recent, o.metric,
      o.rows, o.combine, o.share, o.spread, o.max_tokens, o.page, o.block, o.layer_step, shown(o.skip_layers));
}

std::string key_of(const std::string& name, const ProposerOptions& o, std::optional<DType> weights) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {}", name, o.ngram_min, o.ngram_max, o.suffix_depth,
      o.suffix_cached_requests, o.suffix_cache_bytes, o.suffix_factor, o.suffix_offset, o.suffix_min_probability, o.cascade_first,
      o.self_lookup, shown(o.skip_layers), weights ? int(*weights) : -1);
}

}

template <class Part, class Make>
Result<Part*> Drafting::acquire(std::list<Shared<Part>>& all, const std::string& key, Make&& make) {
  auto it = std::ranges::find_if(all, [&](const auto& shared) { return shared.key == key; });
  if (it == all.end()) {
    const auto idle = [](const auto& shared) { return shared.users == 0; };
    for (auto n = std::ranges::count_if(all, idle); n >= int64_t(kMostIdle); --n)
      all.erase(std::ranges::find_if(all, idle));  // the least recently used
    if (all.size() >= kMostUsed)
      return failure("more than {} different speculation settings at once; wait, or use one that is running", kMostUsed);
    Shared<Part> made{.key = key};
    HUNCH_TRY(made.part, make());
    all.push_back(std::move(made));
    it = std::prev(all.end());
  }
  all.splice(all.end(), all, it);
  ++it->users;
  return it->part.get();
}

template <class Part>
void Drafting::release(std::list<Shared<Part>>& all, const Part* part) {
  for (auto& shared : all)
    if (shared.part.get() == part) --shared.users;
}

Result<Proposer*> Drafting::acquire_proposer(
    const std::string& name, const ProposerOptions& options, std::optional<DType> draft_weights) {
  if (Proposer* loaded = parts_.learned_named(name)) return loaded;
  return acquire(proposers_, key_of(name, options, draft_weights), [&]() -> Result<std::unique_ptr<Proposer>> {
    const auto* entry = Register<Proposer>::find(name);
    HUNCH_CHECK(entry);
    std::function<const Model*()> weights;
    if (draft_weights)
      weights = [this, type = *draft_weights]() -> const Model* {
        auto made = parts_.draft_weights(type);
        return made.ok() ? *made : nullptr;
      };
    return entry->make({
        .backend = parts_.backend.get(),
        .target = parts_.model.get(),
        .draft_weights = std::move(weights),
        .pass = &*parts_.pass,
        .max_draft = parts_.options.max_draft,
        .max_sequences = parts_.options.max_num_seqs,
        .options = options,
    });
  });
}

Result<SparsePolicy*> Drafting::acquire_policy(const std::string& name, const PolicyOptions& options) {
  return acquire(policies_, key_of(name, options), [&]() -> Result<std::unique_ptr<SparsePolicy>> {
    const auto* entry = Register<SparsePolicy>::find(name);
    HUNCH_CHECK(entry);
    return entry->make(parts_.policy_setup(options, parts_.options.max_draft, parts_.options.max_num_seqs));
  });
}

void Drafting::release(const Proposer* part) { release(proposers_, part); }
void Drafting::release(const SparsePolicy* part) { release(policies_, part); }

size_t Drafting::bytes() const {
  size_t total = 0;
  for (const auto& shared : policies_) total += shared.part->bytes();
  return total;
}

}
