// suffix: suffix decoding (Oliaro et al., 2024). Counts of all short substrings, of the request's own tokens and of earlier
// outputs, propose what followed the same tokens most often; the more tokens match and the surer the counts, the longer the
// draft. The better scored of both trees wins.
//
// A step costs what it committed: complete suffixes enter the request's tree one by one, unfinished ones at its end are counted
// from the tokens when asked for. Outputs enter the shared tree once their request closes and leave it oldest first, by number
// and by bytes. A long request leaves its tree to one that begins alike: the next turn of a conversation, another question about
// a document.
#include <fmt/format.h>

#include <bit>
#include <deque>

#include "base/workers.h"
#include "draft/proposer.h"
#include "draft/suffix_guess.h"

namespace hunch {
namespace {

// Substrings of one growing sequence.
class OwnTokens {
 public:
  void open(const Sequence& sequence, int depth) {
    depth_ = depth;
    salt_ = sequence.cache_salt;
    // What a preempted request said before is among the outputs already.
    said_from_ = std::max(sequence.prompt_len, sequence.len());
    const int64_t common = common_with(sequence);
    for (; complete_ > 0 && complete_ - 1 + depth_ > common; --complete_) tree_.erase(complete_ - 1, depth_);
    tree_.cut(common);
    tree_.reserve(std::max(sequence.max_len, sequence.len()));
    append(sequence);
  }
  // How many tokens of a sequence these begin with too, if there are no secrets between them.
  int64_t common_with(const Sequence& sequence) const {
    const int64_t most = salt_ == sequence.cache_salt ? std::min(int64_t(tree_.end()), sequence.len()) : 0;
    int64_t common = 0;
    while (common < most && tree_.token_at(common) == sequence.tokens[common]) ++common;
    return common;
  }

  void append(const Sequence& sequence) {
    const int64_t len = std::min(sequence.len(), tree_.capacity());
    while (int64_t(tree_.end()) < len) tree_.append(sequence.tokens[tree_.end()]);
  }
  // Suffixes that are complete enter the tree, at most so many.
  void extend(int64_t most) {
    for (; most > 0 && waiting() > 0; --most, ++complete_) tree_.insert(complete_, depth_);
  }
  int64_t complete() const { return complete_; }
  int64_t waiting() const { return std::max<int64_t>(0, int64_t(tree_.end()) - depth_ - complete_ + 1); }  // complete ones
  // `context`: the last tokens, as many as the tree is deep.
  SuffixGuess guess(std::span<const int32_t> context, const SuffixSearch& search) const {
    return guess_by_suffix(tree_, context.last(std::min(context.size(), size_t(depth_ - 1))), context, search);
  }
  // The output since open.
  std::vector<int32_t> said() const {
    std::vector<int32_t> out;
    for (int64_t at = said_from_; at < int64_t(tree_.end()); ++at) out.push_back(tree_.token_at(at));
    return out;
  }
  // Requests with a salt keep to themselves: guesses and their timing would tell others.
  bool shares() const { return salt_.empty(); }
  const SuffixTree& tree() const { return tree_; }

 private:
  SuffixTree tree_{SuffixTree::Forgets::Newest};
  int depth_ = 1;
  std::string salt_;
  int64_t complete_ = 0;  // suffixes in the tree
  int64_t said_from_ = INT64_MAX;
};

// Substrings of the outputs of earlier requests.
class Outputs {
 public:
  Outputs(int depth, int max_requests, int64_t max_bytes)
      : depth_(depth),
        max_requests_(max_requests),
        max_tokens_(int64_t(std::bit_floor(uint64_t(max_bytes / SuffixTree::kBytesPerToken)))) {}

  void add(std::span<const int32_t> said) {
    const int64_t len = std::min(std::ssize(said), max_tokens_);
    if (len == 0 || max_requests_ == 0) return;
    while (outputs_.size() >= max_requests_ || tokens_ + len > max_tokens_) drop_oldest();
    if (tokens_ + len > tree_.capacity())
      tree_.reserve(std::min(std::max<int64_t>(2 * tree_.capacity(), tokens_ + len), max_tokens_));
    const Output output{tree_.end(), int32_t(len)};
    for (const int32_t token : said.last(len)) tree_.append(token);
    for (int32_t i = 0; i < output.len; ++i) tree_.insert(output.at + i, std::min(depth_, output.len - i));
    outputs_.push_back(output);
    tokens_ += len;
  }
  const SuffixTree& tree() const { return tree_; }

 private:
  struct Output {
    uint32_t at;
    int32_t len;
  };
  void drop_oldest() {
    const Output output = outputs_.front();
    for (int32_t i = 0; i < output.len; ++i) tree_.erase(output.at + i, std::min(depth_, output.len - i));
    outputs_.pop_front();
    tokens_ -= output.len;
  }

  int depth_;
  size_t max_requests_;
  int64_t max_tokens_, tokens_ = 0;
  SuffixTree tree_;
  std::deque<Output> outputs_;
};

class Suffix final : public Proposer {
 public:
  explicit Suffix(const Setup& setup)
      : options_(setup.options),
        slots_(setup.max_sequences),
        outputs_(setup.options.suffix_depth, setup.options.suffix_cached_requests, setup.options.suffix_cache_bytes) {
    asked_.reserve(setup.max_sequences);
    if (setup.backend && setup.backend->asynchronous()) helpers_.emplace(int(kMostThreads));
  }

  void open(const Sequence& sequence) override {
    settle();
    ++seated_;
    OwnTokens& own = at(sequence.slot);
    int64_t most = 0;
    auto alike = kept_.end();
    for (auto kept = kept_.begin(); kept != kept_.end(); ++kept)
      if (const int64_t common = kept->common_with(sequence); common > most) most = common, alike = kept;
    own = {};
    if (alike != kept_.end() && most > alike->complete() / 2) {
      own = std::move(*alike);
      kept_.erase(alike);
    }
    own.open(sequence, options_.suffix_depth);
  }

  void meanwhile(std::span<const Sequence* const> sequences) override {
    if (!helpers_) return;
    settle();
    asked_.clear();
    for (const Sequence* sequence : sequences) asked_.push_back(sequence->slot);
    extend_asked(2 * kSlice, std::ssize(asked_));
  }

  void propose(std::span<const DraftTask> tasks) override {
    settle();
    if (!helpers_) {
      for (const DraftTask& task : tasks) look_up(task, INT64_MAX);
      return;
    }
    // What is far behind comes in slices, beside the device's work; in a crowd all does.
    const int64_t at_once = tasks.size() <= kCrowd ? kMaxSuffixDepth : 0;
    helpers_->run(
        std::ssize(tasks), [&](int64_t task) { look_up(tasks[task], at_once); }, kLookUps);
    asked_.clear();
    int64_t work = 0;
    for (const DraftTask& task : tasks)
      if (const int64_t waiting = at(task.sequence->slot).waiting();
          task.limits.max_tokens > 0 && waiting > 0 && work < kMostWork) {
        asked_.push_back(task.sequence->slot), work += std::min(waiting, kSlice);
      }
    extend_asked(kSlice, 1 + work / kSlice);
  }

  // Its suffixes enter the tree when somebody asks.
  void observe(const Sequence& sequence, const Verdict&) override {
    settle();
    at(sequence.slot).append(sequence);
  }

  void close(Slot slot) override {
    settle();
    OwnTokens& own = at(slot);
    if (own.shares()) ended_.push_back(own.said());
    // In a crowd beside the device's work.
    if (--seated_ < int64_t(kCrowd) && ended_.size() < 2) share_ended(INT64_MAX);
    if (!helpers_ || ended_.size() > kMostEnded) share_ended(1);
    if (own.complete() >= kWorthKeeping) kept_.push_back(std::move(own));
    own = {};
    const size_t most = std::min(slots_.size(), size_t(options_.suffix_cached_requests));
    int64_t bytes = 0;
    for (const OwnTokens& kept : kept_) bytes += kept.tree().bytes();
    for (; !kept_.empty() && (kept_.size() > most || bytes > options_.suffix_cache_bytes); kept_.pop_front())
      bytes -= kept_.front().tree().bytes();
  }

 private:
  static constexpr size_t kMostThreads = 8;
  static constexpr int64_t kLookUps = 16;  // as long as waking a thread takes
  static constexpr int64_t kSlice = 1024;  // about half a millisecond of one core
  static constexpr int64_t kMostWork = 2 * kMostThreads * kSlice;
  static constexpr int64_t kWorthKeeping = 512;
  static constexpr size_t kCrowd = 4, kMostEnded = 1024;

  void extend_asked(int64_t most, int64_t threads) {
    const int64_t asked = std::ssize(asked_);
    helpers_->start(
        asked + !ended_.empty(), [this, most, asked](int64_t i) { i < asked ? at(asked_[i]).extend(most) : share_ended(kSlice); },
        threads);
  }
  void share_ended(int64_t tokens) {
    for (; tokens > 0 && !ended_.empty(); ended_.pop_front()) outputs_.add(ended_.front()), tokens -= std::ssize(ended_.front());
  }
  // What is done beside the device's work is done with.
  void settle() {
    if (helpers_) helpers_->finish();
  }
  OwnTokens& at(Slot slot) {
    HUNCH_CHECK(slot >= 0 && size_t(slot) < slots_.size());
    return slots_[slot];
  }

  // Writes the task's tree and its own slot, nothing else. Suffixes that wait enter before, if at most `most`.
  void look_up(const DraftTask& task, int64_t most) {
    const Sequence& sequence = *task.sequence;
    DraftTree& tree = *task.tree;
    tree.size = 0, tree.law = DraftLaw::Point;
    if (task.limits.max_tokens <= 0) return;
    OwnTokens& own = at(sequence.slot);
    own.append(sequence);
    if (own.waiting() <= most) own.extend(most);
    const SuffixSearch search{
        .depth = options_.suffix_depth,
        .factor = options_.suffix_factor,
        .offset = options_.suffix_offset,
        .min_probability = options_.suffix_min_probability,
        .branch = task.limits.may_branch,
        .max_tokens = task.limits.max_tokens,
        .max_depth = task.limits.longest(),
    };
    std::vector<int32_t> scratch;
    const auto context = last_tokens(task, options_.suffix_depth, scratch);
    SuffixGuess best = own.guess(context, search);
    if (own.shares())
      if (const SuffixGuess others = guess_by_suffix(outputs_.tree(), {}, context, search); others.score > best.score)
        best = others;
    tree.size = best.size;
    tree.worth = best.score;
    for (int node = 0; node < best.size; ++node) {
      tree.parents[node] = best.parents[node];
      tree.tokens(node) = best.tokens[node];
    }
  }

  ProposerOptions options_;
  std::vector<OwnTokens> slots_;
  std::deque<OwnTokens> kept_;  // of requests that are over
  Outputs outputs_;
  std::deque<std::vector<int32_t>> ended_;  // outputs that are not in the tree yet
  int64_t seated_ = 0;
  std::vector<Slot> asked_;
  std::optional<Workers> helpers_;  // last: its threads end before what they work on
};

Proposer::Made make_suffix(const Proposer::Setup& setup) {
  const ProposerOptions& o = setup.options;
  if (o.suffix_depth < 1 || o.suffix_depth > kMaxSuffixDepth)
    return usage_error(fmt::format("the suffix tree's depth is {}; it must lie in [1, {}]", o.suffix_depth, kMaxSuffixDepth));
  if (o.suffix_cached_requests < 0)
    return usage_error(fmt::format("the number of cached outputs is {}; it must be 0 (off) or more", o.suffix_cached_requests));
  if (o.suffix_cache_bytes < 0 || o.suffix_cache_bytes > int64_t(1) << 36)
    return usage_error(fmt::format("the cache of outputs has {} bytes; it must have 0 (off) to 64 GiB", o.suffix_cache_bytes));
  if (!std::isfinite(o.suffix_factor) || o.suffix_factor < 0)
    return usage_error(fmt::format("the suffix factor is {}; it must be 0 or more", o.suffix_factor));
  if (!std::isfinite(o.suffix_offset)) return usage_error(fmt::format("the suffix offset is {}; give a number", o.suffix_offset));
  if (!(o.suffix_min_probability >= 0 && o.suffix_min_probability <= 1))
    return usage_error(fmt::format("the least token probability is {}; it must lie in [0, 1]", o.suffix_min_probability));
  return std::unique_ptr<Proposer>(new Suffix(setup));
}

const Register<Proposer> suffix{"suffix", "what mostly followed the same tokens, here and in earlier outputs", make_suffix};

}
}
