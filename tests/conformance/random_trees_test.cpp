// Trees of any shape, in any order that has parents first, with a token twice among siblings, up to 256 nodes: tokens, K and V
// are those of plain decoding, byte for byte. The rule follows one path, which must be the right one and lie where a chain would
// have left it.
#include <numeric>

#include "methods.h"

namespace hunch {
namespace {

using namespace test;

// Half of the nodes whose path is right so far get the right token, where an earlier run of the request told it.
class RandomTrees final : public Proposer {
 public:
  void propose(std::span<const DraftTask> tasks) override {
    for (const DraftTask& task : tasks) grow(task);
  }
  void observe(const Sequence& sequence, const Verdict&) override {
    if (sequence.len() > std::ssize(known_) || !begins(sequence.tokens, known_)) known_ = sequence.tokens;
  }

 private:
  struct Node {
    int parent, depth;
    int32_t token;
    bool right;
  };
  static bool begins(const Ints& tokens, const Ints& all) {
    return tokens.size() <= all.size() && std::equal(tokens.begin(), tokens.end(), all.begin());
  }

  void grow(const DraftTask& task) {
    const Sequence& sequence = *task.sequence;
    DraftTree& tree = *task.tree;
    tree.size = 0, tree.law = DraftLaw::Point;
    if (task.limits.max_tokens <= 0) return;
    const int size = dice_.below(4) == 0 ? task.limits.max_tokens : 1 + dice_.below(task.limits.max_tokens);
    const bool knows = begins(sequence.tokens, known_);
    nodes_.clear();
    while (int(nodes_.size()) < size) {
      // Favours late nodes now and then, so that there are deep trees and bushy ones.
      const int made = int(nodes_.size());
      int parent = dice_.below(2) == 0 && made > 0 ? made - 1 : dice_.below(made + 1) - 1;
      while (parent >= 0 && nodes_[parent].depth >= task.limits.longest()) parent = nodes_[parent].parent;
      const int depth = parent < 0 ? 1 : nodes_[parent].depth + 1;
      const size_t place = sequence.tokens.size() + size_t(depth) - 1;
      const bool may = knows && place < known_.size() && (parent < 0 || nodes_[parent].right);
      const int32_t token = may && dice_.below(2) ? known_[place] : dice_.below(256);
      nodes_.push_back({parent, depth, token, may && token == known_[place]});
    }
    // As they came, breadth first or depth first.
    order_.resize(nodes_.size());
    std::iota(order_.begin(), order_.end(), 0);
    const int how = dice_.below(3);
    if (how == 1) std::ranges::stable_sort(order_, [&](int a, int b) { return nodes_[a].depth < nodes_[b].depth; });
    if (how == 2) order_.clear(), depth_first(-1);
    place_.resize(nodes_.size());
    for (size_t i = 0; i < order_.size(); ++i) place_[order_[i]] = int(i);
    for (size_t i = 0; i < order_.size(); ++i) {
      const Node& node = nodes_[order_[i]];
      tree.tokens(int64_t(i)) = node.token;
      tree.parents[i] = node.parent < 0 ? -1 : place_[node.parent];
    }
    tree.size = size;
  }
  void depth_first(int parent) {
    for (int node = parent + 1; node < int(nodes_.size()); ++node)
      if (nodes_[node].parent == parent) order_.push_back(node), depth_first(node);
  }

  Dice dice_{5};
  Ints known_;
  std::vector<Node> nodes_;
  std::vector<int> order_, place_;
};
const Register<Proposer> random_trees{"random-trees", "for tests", make_proposer<RandomTrees>};

TEST(RandomTrees, LeaveThePlainStreamAndItsEntriesWhateverTheirShapeAndOrder) {
  int turn = 0;
  TreeCounts counts;
  for (const char* device : kHosts)
    for (const char* kv : kKvTypes) {
      static constexpr const char* kModels[] = {"qwen3-tied", "llama-q4_k_m.gguf", "qwen2-window"};
      const char* model = kModels[turn % 3];
      EngineOptions options{.model = tiny_path(model), .device = device, .threads = 1 + turn % 2, .kv_dtype = kv};
      options.context_len = 512, options.max_draft = 256;
      auto engine = load(options);
      // Far from the end, which would cut the trees.
      auto request = ask(random_prompt(40 + 13 * (turn % 3), 256, 3), 400, turn % 2 ? 0.8 : 0.0);
      if (turn % 4 == 3) request.sampling.repetition_penalty = 1.2, request.sampling.frequency_penalty = 0.3;
      expect_entries_of_a_chain(*engine, request, 256, 115, turn, fmt::format("{} {} {}", device, kv, model), counts);
      ++turn;
    }
  EXPECT_EQ(counts.largest, 256);
  EXPECT_GT(counts.kept, 150);
  EXPECT_GT(counts.moved, 100);
}

}
}
