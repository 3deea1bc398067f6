#include "kv/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace hunch {
namespace {

std::vector<int32_t> counted(int32_t from, int64_t length) {
  std::vector<int32_t> out(static_cast<size_t>(length));
  std::iota(out.begin(), out.end(), from);
  return out;
}

Sequence sequence_of(std::vector<int32_t> tokens, int64_t committed, PagePool& pool) {
  Sequence sequence;
  sequence.tokens = std::move(tokens);
  sequence.committed_len = committed;
  sequence.pages = PageTable(4096);
  HUNCH_CHECK(sequence.pages.grow_to(committed + 1, pool));
  return sequence;
}

TEST(PrefixCache, GivesWholeCommittedPagesOfAnEqualBeginningOnly) {
  PagePool pool(20);
  PrefixCache cache(pool);
  Sequence first = sequence_of(counted(0, 300), 200, pool);
  EXPECT_EQ(cache.publish(first, 0), 192) << "the page of entries 192..199 is not whole";
  EXPECT_EQ(cache.find(counted(0, 300), 300).size(), 3u);
  EXPECT_EQ(cache.find(counted(0, 300), 130).size(), 2u) << "no more than asked for";
  auto other = counted(0, 300);
  other[70] = 9999;
  EXPECT_EQ(cache.find(other, 300).size(), 1u);
  EXPECT_TRUE(cache.find(counted(1, 300), 300).empty());
}

TEST(PrefixCache, KeepsPagesThatNobodyHoldsUntilThePoolNeedsThem) {
  PagePool pool(4);
  PrefixCache cache(pool);
  {
    Sequence sequence = sequence_of(counted(0, 200), 192, pool);
    cache.publish(sequence, 0);
    sequence.pages.release_past(0, pool);
  }
  EXPECT_EQ(pool.num_kept(), 3);
  EXPECT_EQ(pool.num_free(), 4);
  PageTable table(4096);
  ASSERT_TRUE(table.grow_to(2 * kPageLen, pool));  // one was free, one is surrendered: the end of the chain
  EXPECT_EQ(cache.find(counted(0, 200), 200).size(), 2u);
  EXPECT_FALSE(table.grow_to(3 * kPageLen, pool)) << "held pages are nobody else's";
}

TEST(PrefixCache, GivesUpWhatWasNotUsedForLongest) {
  PagePool pool(5);
  PrefixCache cache(pool);
  for (const int32_t from : {0, 1000}) {
    Sequence sequence = sequence_of(counted(from, 130), 128, pool);
    cache.publish(sequence, 0);
    sequence.pages.release_past(0, pool);
  }
  for (const int32_t page : cache.find(counted(0, 130), 130)) pool.give_back(page);
  PageTable table(4096);
  ASSERT_TRUE(table.grow_to(3 * kPageLen, pool));
  EXPECT_EQ(cache.find(counted(0, 130), 130).size(), 2u);
  EXPECT_TRUE(cache.find(counted(1000, 130), 130).empty());
}

TEST(PrefixCache, TwoWhoComputedTheSameShareOneChain) {
  PagePool pool(20);
  PrefixCache cache(pool);
  Sequence a = sequence_of(counted(0, 200), 130, pool), b = sequence_of(counted(0, 200), 130, pool);
  int64_t of_a = cache.publish(a, 0), of_b = cache.publish(b, 0);
  EXPECT_EQ(of_a, 128);
  EXPECT_EQ(of_b, 128);
  b.committed_len = 199;
  ASSERT_TRUE(b.pages.grow_to(200, pool));
  EXPECT_EQ(cache.publish(b, of_b), 192) << "its third page continues the chain that the other published";
  a.pages.release_past(0, pool);
  b.pages.release_past(0, pool);
  EXPECT_EQ(pool.num_kept(), 3);
  EXPECT_EQ(cache.find(counted(0, 200), 200).size(), 3u);
}

// Two pages that differ in two tokens and agree in their 64-bit chain: tokens a, b and c, d with mix(a) + b = mix(c) + d.
TEST(PrefixCache, TwoBeginningsOfOneHashAreTwoBeginnings) {
  const auto mix = [](uint64_t x) {
    x ^= x >> 30, x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27, x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
  };
  std::vector<std::pair<uint64_t, int32_t>> hashes;
  for (int32_t token = 0; token < 1 << 18; ++token) hashes.emplace_back(mix(0x9e3779b97f4a7c15u + uint64_t(token)), token);
  std::sort(hashes.begin(), hashes.end());
  auto one = counted(0, 80), other = one;
  for (size_t i = 0; i + 1 < hashes.size() && one == other; ++i) {
    const uint64_t difference = hashes[i + 1].first - hashes[i].first;
    if (difference >= uint64_t(1) << 30) continue;
    one[0] = hashes[i].second, one[1] = int32_t(difference);
    other[0] = hashes[i + 1].second, other[1] = 0;
  }
  ASSERT_NE(one, other);
  PagePool pool(4);
  PrefixCache cache(pool);
  const Sequence sequence = sequence_of(one, 70, pool);
  cache.publish(sequence, 0);
  EXPECT_EQ(cache.find(one, 80).size(), 1u);
  EXPECT_TRUE(cache.find(other, 80).empty());
}

TEST(PrefixCache, ForgetsEverythingButLeavesHeldPagesToTheirHolders) {
  PagePool pool(6);
  PrefixCache cache(pool);
  Sequence held = sequence_of(counted(0, 200), 192, pool);
  cache.publish(held, 0);
  cache.clear();
  EXPECT_TRUE(cache.find(counted(0, 200), 200).empty());
  held.pages.release_past(0, pool);
  EXPECT_EQ(pool.num_free(), 6);
  EXPECT_EQ(pool.num_kept(), 0);
}

}  // namespace
}  // namespace hunch
