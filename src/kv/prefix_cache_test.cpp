#include "kv/prefix_cache.h"
#include "base/test_results.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace hunch {
namespace {

Ints counted(int32_t from, int64_t length) {
  Ints out(length);
  std::iota(out.begin(), out.end(), from);
  return out;
}

Sequence sequence_of(Ints tokens, int64_t committed, PagePool& pool) {
  Sequence sequence;
  sequence.tokens = std::move(tokens);
  sequence.committed_len = committed;
  sequence.pages = PageTable(4096);
  HUNCH_CHECK(sequence.pages.grow_to(committed + 1, pool));
  return sequence;
}

int64_t publish(PrefixCache& cache, const Sequence& sequence) {
  PrefixCache::Published all;
  cache.publish(sequence, all);
  return all.entries;
}

TEST(PrefixCache, GivesWholeCommittedPagesOfAnEqualBeginningOnly) {
  PagePool pool(20);
  PrefixCache cache(pool);
  Sequence first = sequence_of(counted(0, 300), 200, pool);
  EXPECT_EQ(publish(cache, first), 192) << "the page of entries 192..199 is not whole";
  EXPECT_EQ(cache.find(counted(0, 300), 300).size(), 3u);
  EXPECT_EQ(cache.find(counted(0, 300), 191).size(), 2u) << "no more than asked for";
  auto other = counted(0, 300);
  other[70] = 9999;
  EXPECT_EQ(cache.find(other, 300).size(), 1u);
  EXPECT_TRUE(cache.find(counted(1, 300), 300).empty());
}

TEST(PrefixCache, GivesNothingAcrossSalts) {
  PagePool pool(20);
  PrefixCache cache(pool);
  Sequence mine = sequence_of(counted(0, 300), 192, pool), theirs = sequence_of(counted(0, 300), 192, pool);
  mine.cache_salt = "a", theirs.cache_salt = std::string("b\0", 2);
  publish(cache, mine);
  EXPECT_EQ(cache.find(counted(0, 300), 300, "a").size(), 3u);
  EXPECT_TRUE(cache.find(counted(0, 300), 300).empty());
  EXPECT_TRUE(cache.find(counted(0, 300), 300, theirs.cache_salt).empty());
  EXPECT_EQ(publish(cache, theirs), 192) << "the same tokens again, under pages of its own";
  const auto found = cache.find(counted(0, 300), 300, theirs.cache_salt);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0], theirs.pages.page_of(0));
}

TEST(PrefixCache, KeepsPagesThatNobodyHoldsUntilThePoolNeedsThem) {
  PagePool pool(4);
  PrefixCache cache(pool);
  {
    Sequence sequence = sequence_of(counted(0, 200), 192, pool);
    publish(cache, sequence);
    sequence.pages.release_past(0, pool);
  }
  EXPECT_EQ(pool.num_kept(), 3);
  EXPECT_EQ(pool.num_free(), 4);
  PageTable table(4096);
  ASSERT_TRUE(table.grow_to(2 * kPageLen, pool));  // one was free, one is surrendered: the end of the chain
  EXPECT_EQ(cache.find(counted(0, 200), 200).size(), 2u);
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_FALSE(table.grow_to(3 * kPageLen, pool)) << "held pages are nobody else's";
}

TEST(PrefixCache, GivesUpWhatWasNotUsedForLongest) {
  PagePool pool(5);
  PrefixCache cache(pool);
  for (const int32_t from : {0, 1000}) {
    Sequence sequence = sequence_of(counted(from, 130), 128, pool);
    publish(cache, sequence);
    sequence.pages.release_past(0, pool);
  }
  for (const int32_t page : cache.find(counted(0, 130), 130)) pool.give_back(page);
  PageTable table(4096);
  ASSERT_TRUE(table.grow_to(3 * kPageLen, pool));
  EXPECT_EQ(cache.find(counted(0, 130), 130).size(), 2u);
  EXPECT_TRUE(cache.find(counted(1000, 130), 130).empty());
}

// What continues such a page may be held, by one who computed the beginning too.
TEST(PrefixCache, EveryPageThatNobodyHoldsCanBeHad) {
  PagePool pool(10);
  PrefixCache cache(pool);
  auto tokens = counted(0, 200);
  Sequence first = sequence_of(tokens, 128, pool), stranger = sequence_of(counted(1000, 70), 64, pool);
  tokens[150] = 9999;
  Sequence other = sequence_of(tokens, 192, pool);
  for (const Sequence* sequence : {&first, &other, &stranger}) publish(cache, *sequence);
  first.pages.release_past(0, pool);
  EXPECT_EQ(pool.num_kept(), 2);
  PageTable table(4096);
  EXPECT_TRUE(table.grow_to(pool.num_free() * kPageLen, pool));
  EXPECT_TRUE(cache.find(tokens, 192).empty());
  EXPECT_EQ(cache.find(counted(1000, 70), 64).size(), 1u);
  other.pages.release_past(0, pool);
  EXPECT_EQ(pool.num_kept(), 0);
}

TEST(PrefixCache, TwoWhoComputedTheSameShareOneChain) {
  PagePool pool(20);
  PrefixCache cache(pool);
  Sequence a = sequence_of(counted(0, 200), 130, pool), b = sequence_of(counted(0, 200), 130, pool);
  PrefixCache::Published of_b;
  EXPECT_EQ(publish(cache, a), 128);
  cache.publish(b, of_b);
  EXPECT_EQ(of_b.entries, 128);
  b.committed_len = 199;
  ASSERT_TRUE(b.pages.grow_to(200, pool));
  cache.publish(b, of_b);
  EXPECT_EQ(of_b.entries, 192) << "its third page continues the chain that the other published";
  a.pages.release_past(0, pool);
  b.pages.release_past(0, pool);
  EXPECT_EQ(pool.num_kept(), 3);
  EXPECT_EQ(cache.find(counted(0, 200), 200).size(), 3u);
}

// Called after every token. The same beginning made known by somebody else, and given up again, are what used to cost a look at
// all of it each time.
TEST(PrefixCache, PublishingATokenCostsNothingAndAPageOneLookHoweverLongTheSequence) {
  constexpr int64_t kPages = 40, kMore = 5;
  const auto tokens = counted(0, (kPages + kMore) * kPageLen);
  for (const bool known : {false, true})
    for (const bool given_up : {false, true}) {
      PagePool pool(2 * (kPages + kMore) + 2);
      PrefixCache cache(pool);
      Sequence other = sequence_of(tokens, known ? tokens.size() : 0, pool), own = sequence_of(tokens, kPages * kPageLen, pool);
      publish(cache, other);
      PrefixCache::Published so_far;
      cache.publish(own, so_far);
      other.pages.release_past(0, pool);
      if (given_up) cache.clear();
      const int64_t before = cache.pages_sought();
      for (int64_t len = kPages * kPageLen; len <= std::ssize(tokens); ++len) {
        own.committed_len = len;
        ASSERT_TRUE(own.pages.grow_to(len, pool));
        cache.publish(own, so_far);
      }
      EXPECT_EQ(cache.pages_sought() - before, kMore) << known << given_up;
      EXPECT_EQ(so_far.entries, (given_up ? kPages : kPages + kMore) * kPageLen);
    }
}

// The page under which a sequence goes on may leave and come back as something else.
TEST(PrefixCache, NothingHangsUnderAPageThatWasGivenUp) {
  PagePool pool(6);
  PrefixCache cache(pool);
  Sequence other = sequence_of(counted(0, 200), 128, pool), own = sequence_of(counted(0, 200), 128, pool);
  publish(cache, other);
  PrefixCache::Published so_far;
  cache.publish(own, so_far);
  other.pages.release_past(0, pool);
  cache.clear();
  EXPECT_EQ(pool.num_kept(), 0);
  Sequence stranger = sequence_of(counted(1000, 200), 128, pool);  // in the pages that the other had
  publish(cache, stranger);
  own.committed_len = 192;
  cache.publish(own, so_far);
  EXPECT_EQ(so_far.entries, 128);
  auto mixed = counted(1000, 128);
  mixed.insert(mixed.end(), own.tokens.begin() + 128, own.tokens.end());
  EXPECT_EQ(cache.find(mixed, 200).size(), 2u);
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
  std::ranges::sort(hashes);
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
  publish(cache, sequence);
  EXPECT_EQ(cache.find(one, 80).size(), 1u);
  EXPECT_TRUE(cache.find(other, 80).empty());
}

TEST(PrefixCache, ForgetsEverythingButLeavesHeldPagesToTheirHolders) {
  PagePool pool(6);
  PrefixCache cache(pool);
  Sequence held = sequence_of(counted(0, 200), 192, pool);
  publish(cache, held);
  cache.clear();
  EXPECT_TRUE(cache.find(counted(0, 200), 200).empty());
  held.pages.release_past(0, pool);
  EXPECT_EQ(pool.num_free(), 6);
  EXPECT_EQ(pool.num_kept(), 0);
}

}
}
