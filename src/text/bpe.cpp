// Both hash tables are open-addressed over plain vectors: a vocabulary of 150,000 tokens loads in milliseconds, and a
// look-up in the merge loop touches one cache line.
#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/check.h"
#include "base/failure.h"
#include "text/byte_alphabet.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

constexpr uint32_t kNoRank = ~uint32_t(0);
constexpr size_t kShortWord = 24;  // bytes; up to here a scan beats the heap

size_t hash_of(std::string_view bytes) { return std::hash<std::string_view>()(bytes); }

size_t hash_of(uint64_t pair) {
  pair *= 0x9E3779B97F4A7C15u;
  return pair ^ pair >> 29;
}

Error too_long(int32_t id, size_t length) {
  return failure("token longer than {} bytes: id {}, {} bytes", kMaxTokenBytes, id, length);
}

// Slots for `n` entries at a load of at most a half.
size_t num_slots(size_t n) { return std::bit_ceil(std::max<size_t>(16, 2 * n)); }

}

void Bpe::reserve(size_t num_tokens, size_t num_token_bytes, size_t num_merges) {
  tokens_.reserve(num_tokens);
  arena_.reserve(num_token_bytes);
  slots_.assign(num_slots(num_tokens), -1);
  merges_.assign(num_slots(num_merges), Merge{});
}

Status Bpe::place(int32_t id, size_t offset, Kind kind) {
  const size_t length = arena_.size() - offset;
  if (id < 0 || id >= kMaxVocab) return failure("token id out of range (0 to {}): {}", kMaxVocab - 1, id);
  if (length > kMaxTokenBytes) return too_long(id, length);
  if (arena_.size() > UINT32_MAX) return Error{"the tokens together are longer than 4 GiB"};
  if (size_t(id) >= tokens_.size()) tokens_.resize(id + 1);
  tokens_[id] = {uint32_t(offset), uint16_t(length), kind};
  longest_ = std::max(longest_, length);
  return {};
}

Status Bpe::add_token(int32_t id, std::string_view spelling) {
  // Two bytes at most spell one: refuse before copying.
  if (spelling.size() > 2 * kMaxTokenBytes) return too_long(id, spelling.size());
  if (has(id)) return failure("two tokens have one id: {}", id);
  const size_t offset = arena_.size();
  const bool word = append_spelt_bytes(spelling, arena_);
  if (!word) arena_ += spelling;
  HUNCH_OK(place(id, offset, word ? Kind::Word : Kind::Odd));
  if (word) return index(id);
  if (!odd_.emplace(std::string(spelling), id).second) return Error{"token given twice: " + excerpt(spelling)};
  return {};
}

Status Bpe::add_text(int32_t id, std::string_view bytes) {
  if (bytes.size() > kMaxTokenBytes) return too_long(id, bytes.size());
  const size_t offset = arena_.size();
  arena_ += bytes;
  if (has(id)) {
    // The slot of a Word is found by its old bytes, which stay in the arena: only what bytes() gives may change.
    if (this->bytes(id) == bytes) {
      arena_.resize(offset);
      return {};
    }
    return failure("added token has the id of another token: {} (id {})", excerpt(bytes), id);
  }
  return place(id, offset, Kind::Text);
}

Status Bpe::index(int32_t id) {
  if (2 * (num_indexed_ + 1) > slots_.size()) {
    std::vector<int32_t> old = std::move(slots_);
    slots_.assign(num_slots(2 * num_indexed_ + 16), -1);
    for (const int32_t other : old)
      if (other >= 0) *free_slot(bytes(other)) = other;
  }
  int32_t* slot = free_slot(bytes(id));
  if (!slot) return failure("token given twice: {} (id {})", excerpt(bytes(id)), id);
  *slot = id;
  ++num_indexed_;
  return {};
}

// Where these bytes would go; null if they are there.
int32_t* Bpe::free_slot(std::string_view wanted) {
  const size_t mask = slots_.size() - 1;
  for (size_t at = hash_of(wanted) & mask;; at = (at + 1) & mask) {
    if (slots_[at] < 0) return &slots_[at];
    if (bytes(slots_[at]) == wanted) return nullptr;
  }
}

std::optional<int32_t> Bpe::find(std::string_view wanted) const {
  if (slots_.empty()) return {};
  const size_t mask = slots_.size() - 1;
  for (size_t at = hash_of(wanted) & mask;; at = (at + 1) & mask) {
    if (slots_[at] < 0) return {};
    if (bytes(slots_[at]) == wanted) return slots_[at];
  }
}

std::optional<int32_t> Bpe::find_spelling(std::string_view spelling) const {
  std::string spelt;
  if (append_spelt_bytes(spelling, spelt)) return find(spelt);
  const auto at = odd_.find(spelling);
  return at == odd_.end() ? std::nullopt : std::optional(at->second);
}

Status Bpe::add_merge(std::string_view left, std::string_view right) {
  const auto missing = [&](std::string_view token) {
    return failure("merge {} names a token that the vocabulary lacks: {}", next_rank_, excerpt(token));
  };
  for (const std::string_view part : {left, right})
    if (part.size() > 2 * kMaxTokenBytes) return missing(part);  // two bytes at most spell one
  int32_t id = -1, left_id = -1, right_id = -1;
  scratch_.clear();
  if (append_spelt_bytes(left, scratch_)) {
    const size_t middle = scratch_.size();
    if (append_spelt_bytes(right, scratch_)) {  // the usual case: one buffer holds both parts and the whole
      const std::string_view whole = scratch_;
      left_id = find(whole.substr(0, middle)).value_or(-1);
      right_id = find(whole.substr(middle)).value_or(-1);
      id = find(whole).value_or(-1);
    }
  }
  if (left_id < 0) left_id = find_spelling(left).value_or(-1);
  if (left_id < 0) return missing(left);
  if (right_id < 0) right_id = find_spelling(right).value_or(-1);
  if (right_id < 0) return missing(right);
  if (id < 0) id = find_spelling(std::string(left) + std::string(right)).value_or(-1);
  if (id < 0) return missing(std::string(left) + std::string(right));
  insert_merge({pair_of(left_id, right_id), next_rank_++, id});
  return {};
}

void Bpe::insert_merge(const Merge& merge) {
  if (2 * (num_merges_ + 1) > merges_.size()) {
    std::vector<Merge> old = std::move(merges_);
    merges_.assign(num_slots(2 * num_merges_ + 16), Merge{});
    num_merges_ = 0;
    for (const Merge& other : old)
      if (other.pair != kNoPair) insert_merge(other);
  }
  const size_t mask = merges_.size() - 1;
  size_t at = hash_of(merge.pair) & mask;
  while (merges_[at].pair != kNoPair && merges_[at].pair != merge.pair) at = (at + 1) & mask;
  num_merges_ += merges_[at].pair == kNoPair;
  merges_[at] = merge;  // of a pair given twice the last rank counts, as in Hugging Face
}

const Bpe::Merge* Bpe::find_merge(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  const size_t mask = merges_.size() - 1;
  for (size_t at = hash_of(pair) & mask;; at = (at + 1) & mask) {
    if (merges_[at].pair == pair) return &merges_[at];
    if (merges_[at].pair == kNoPair) return nullptr;
  }
}

Status Bpe::finish(bool whole_words) {
  whole_words_ = whole_words;
  if (merges_.empty()) merges_.assign(num_slots(0), Merge{});
  for (int b = 0; b < 256; ++b) {
    const char byte = char(b);
    const auto id = find({&byte, 1});
    if (!id) return failure("not a byte-level vocabulary: no token for byte 0x{:02X}", b);
    byte_ids_[b] = *id;
  }
  return {};
}

void Bpe::encode_word(std::string_view word, std::vector<int32_t>& out) const {
  if (word.size() == 1) {
    out.push_back(byte_ids_[uint8_t(word[0])]);
    return;
  }
  if (whole_words_ && word.size() <= longest_) {
    if (const auto id = find(word)) {
      out.push_back(*id);
      return;
    }
  }
  if (word.size() <= kShortWord) merge_short(word, out);
  else merge_long(word, out);
}

// ids[i] and the merge of ids[i] with its right neighbour, rescanned for the best rank after every merge.
void Bpe::merge_short(std::string_view word, std::vector<int32_t>& out) const {
  int32_t ids[kShortWord], merged[kShortWord];
  uint32_t ranks[kShortWord];
  size_t n = word.size();
  const auto look = [&](size_t i) {
    const Merge* merge = i + 1 < n ? find_merge(ids[i], ids[i + 1]) : nullptr;
    ranks[i] = merge ? merge->rank : kNoRank;
    merged[i] = merge ? merge->id : -1;
  };
  for (size_t i = 0; i < n; ++i) ids[i] = byte_ids_[uint8_t(word[i])];
  for (size_t i = 0; i < n; ++i) look(i);
  while (n > 1) {
    const size_t best = std::min_element(ranks, ranks + n) - ranks;  // the leftmost of equals
    if (ranks[best] == kNoRank) break;
    ids[best] = merged[best];
    for (size_t i = best + 1; i + 1 < n; ++i) ids[i] = ids[i + 1], ranks[i] = ranks[i + 1], merged[i] = merged[i + 1];
    --n;
    look(best);
    if (best > 0) look(best - 1);
  }
  out.insert(out.end(), ids, ids + n);
}

// Symbols in a doubly linked list, candidate merges in a heap ordered by (rank, position). An entry is stale if the pair at its
// position has another rank by now. Each merge adds at most two entries: O(n log n).
void Bpe::merge_long(std::string_view word, std::vector<int32_t>& out) const {
  struct Symbol {
    int32_t id, previous, next;  // id -1: merged away
  };
  const int32_t n = int32_t(word.size());
  std::vector<Symbol> symbols(word.size());
  for (int32_t i = 0; i < n; ++i) symbols[i] = {byte_ids_[uint8_t(word[i])], i - 1, i + 1 < n ? i + 1 : -1};

  std::vector<uint64_t> heap;  // rank in the high half, position in the low
  const auto merge_at = [&](int32_t at) -> const Merge* {
    const Symbol& left = symbols[at];
    return left.id < 0 || left.next < 0 ? nullptr : find_merge(left.id, symbols[left.next].id);
  };
  const auto entry = [](const Merge& merge, int32_t at) { return uint64_t(merge.rank) << 32 | uint32_t(at); };
  for (int32_t i = 0; i + 1 < n; ++i)
    if (const Merge* merge = merge_at(i)) heap.push_back(entry(*merge, i));
  std::ranges::make_heap(heap, std::greater<>());
  const auto offer = [&](int32_t at) {
    if (const Merge* merge = merge_at(at)) {
      heap.push_back(entry(*merge, at));
      std::ranges::push_heap(heap, std::greater<>());
    }
  };

  while (!heap.empty()) {
    std::ranges::pop_heap(heap, std::greater<>());
    const uint64_t best = heap.back();
    heap.pop_back();
    const int32_t at = int32_t(uint32_t(best));
    const Merge* merge = merge_at(at);
    if (!merge || merge->rank != best >> 32) continue;
    Symbol& left = symbols[at];
    Symbol& right = symbols[left.next];
    left.id = merge->id;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbols[left.next].previous = at;
    offer(at);
    if (left.previous >= 0) offer(left.previous);
  }
  for (int32_t at = 0; at >= 0; at = symbols[at].next) out.push_back(symbols[at].id);
}

}
