#include "kv/prefix_cache.h"

#include <unordered_set>

namespace hunch {
namespace {

uint64_t mix(uint64_t x) {  // the finaliser of SplitMix64
  x ^= x >> 30, x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27, x *= 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

uint64_t chain_of(uint64_t before, std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) before = mix(before + 0x9e3779b97f4a7c15u + uint32_t(token));
  return before;
}

uint64_t chain_of(std::string_view salt) {
  uint64_t chain = 0;
  for (const char c : salt) chain = mix(chain + 0x9e3779b97f4a7c15u + static_cast<unsigned char>(c));
  return chain;
}

}

PrefixCache::PrefixCache(PagePool& pool) : pool_(pool), by_page_(size_t(pool.num_pages()), nullptr) { pool.set_keeper(this); }

PrefixCache::Node* PrefixCache::lookup(
    const Node* before, uint64_t chain, std::span<const int32_t> tokens, std::string_view salt) const {
  ++pages_sought_;
  const auto [first, last] = by_chain_.equal_range(chain);
  for (auto it = first; it != last; ++it)
    if (it->second->before == before && (before || it->second->salt == salt) &&
        std::equal(tokens.begin(), tokens.end(), it->second->tokens.begin()))
      return it->second;
  return nullptr;
}

std::vector<int32_t> PrefixCache::find(std::span<const int32_t> tokens, int64_t max_entries, std::string_view salt) {
  std::vector<int32_t> pages;
  std::vector<Node*> path;
  uint64_t chain = chain_of(salt);
  Node* before = nullptr;
  for (int64_t first = 0; first + kPageLen <= std::min<int64_t>(max_entries, std::ssize(tokens)); first += kPageLen) {
    const auto part = tokens.subspan(first, kPageLen);
    chain = chain_of(chain, part);
    before = lookup(before, chain, part, salt);
    if (!before) break;
    path.push_back(before);
    pages.push_back(before->page);
    pool_.share(before->page);
  }
  // The beginning is what others will want: it becomes the most recently used.
  for (auto node = path.rbegin(); node != path.rend(); ++node) nodes_.splice(nodes_.end(), nodes_, (*node)->self);
  return pages;
}

// The known page that ends where `so_far` does; null: it has been given up meanwhile.
//
// A page of this sequence that is not the known one (another sequence was faster) ends what can be published under its own pages:
// those behind it continue a page that is not in the cache under this sequence's id. They can hang under the known one, whose
// contents are the same bits.
PrefixCache::Node* PrefixCache::end_of(const Sequence& sequence, const Published& so_far) const {
  if (so_far.page >= 0)
    if (Node* node = by_page_[so_far.page]; node && node->number == so_far.number) return node;
  if (Node* node = by_page_[sequence.pages.page_of(so_far.entries - 1)]) return node;
  const std::span<const int32_t> tokens(sequence.tokens);
  Node* node = nullptr;
  uint64_t chain = chain_of(sequence.cache_salt);
  for (int64_t first = 0; first < so_far.entries; first += kPageLen) {  // the known pages of the same beginning
    const auto part = tokens.subspan(first, kPageLen);
    chain = chain_of(chain, part);
    node = lookup(node, chain, part, sequence.cache_salt);
    if (!node) return nullptr;
  }
  return node;
}

void PrefixCache::publish(const Sequence& sequence, Published& so_far) {
  if (sequence.committed_len < std::max(so_far.entries + kPageLen, so_far.next_attempt)) return;
  Node* before = nullptr;
  if (so_far.entries > 0) {
    before = end_of(sequence, so_far);
    // Somebody may make it known again; to look at every step would cost the whole length each time.
    so_far.next_attempt = before ? 0 : (sequence.committed_len / kPageLen + 1) * kPageLen;
    if (!before) return;
  }
  uint64_t chain = before ? before->chain : chain_of(sequence.cache_salt);
  for (; so_far.entries + kPageLen <= sequence.committed_len; so_far.entries += kPageLen) {
    const auto part = std::span<const int32_t>(sequence.tokens).subspan(so_far.entries, kPageLen);
    chain = chain_of(chain, part);
    Node* node = lookup(before, chain, part, sequence.cache_salt);
    if (!node) {
      const int32_t page = sequence.pages.page_of(so_far.entries);
      HUNCH_CHECK(by_page_[page] == nullptr);
      nodes_.push_back(
          {.number = ++last_number_, .chain = chain, .before = before, .page = page, .tokens = {part.begin(), part.end()}});
      node = &nodes_.back();
      node->self = std::prev(nodes_.end());
      if (!before) node->salt = sequence.cache_salt;
      by_chain_.emplace(chain, node);
      by_page_[page] = node;
      if (before) ++before->children;
    }
    before = node;
  }
  so_far.page = before->page, so_far.number = before->number;
}

void PrefixCache::remove(Node* node) {
  const auto [first, last] = by_chain_.equal_range(node->chain);
  for (auto it = first; it != last; ++it)
    if (it->second == node) {
      by_chain_.erase(it);
      break;
    }
  by_page_[node->page] = nullptr;
  if (node->before) --node->before->children;
  nodes_.erase(node->self);
}

std::optional<int32_t> PrefixCache::surrender() {
  // A page whose continuation is known stays longer: without it the continuation could not be found.
  Node* given = nullptr;
  for (Node& node : nodes_) {
    if (pool_.holders(node.page) > 0 || (given && node.children > 0 && node.number < given->number)) continue;
    given = &node;
    if (node.children == 0) break;
  }
  if (!given) return {};
  // If none is without, the latest goes, and with it what continues it: pages of sequences that computed the beginning
  // themselves.
  if (given->children > 0) {
    std::vector<Node*> later;
    for (Node& node : nodes_)
      if (node.number > given->number) later.push_back(&node);
    std::ranges::sort(later, {}, &Node::number);  // what a page continues is older
    std::unordered_set<const Node*> gone{given};
    std::erase_if(later, [&](const Node* node) { return !gone.contains(node->before) || !gone.insert(node).second; });
    std::ranges::for_each(later.rbegin(), later.rend(), [&](Node* node) { remove(node); });
  }
  const int32_t page = given->page;
  remove(given);
  return page;
}

void PrefixCache::clear() {
  for (const Node& node : nodes_) {
    by_page_[node.page] = nullptr;
    if (pool_.holders(node.page) == 0) pool_.put_free(node.page);
  }
  nodes_.clear();
  by_chain_.clear();
}

}
