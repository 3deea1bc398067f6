#include "kv/prefix_cache.h"
#include "base/test_results.h"

#include <numeric>

namespace hunch {
namespace {

Ints counted(int32_t from, int64_t length) {
  Ints out(length);
  std::iota(out.begin(), out.end(), from);
  return out;
}

// A cache, and sequences in the pages of its pool.
struct Rig {
  explicit Rig(int64_t pages) : pool(pages) {}
  Sequence sequence(Ints tokens, int64_t committed) {
    Sequence out;
    out.tokens = std::move(tokens);
    out.committed_len = committed;
    out.pages = PageTable(4096);
    HUNCH_CHECK(out.pages.grow_to(committed + 1, pool));
    return out;
  }
  int64_t publish(const Sequence& sequence) {
    PrefixCache::Published all;
    cache.publish(sequence, all);
    return all.entries;
  }
  void release(Sequence& sequence) { sequence.pages.release_past(0, pool); }
  // How many pages of the tokens it has.
  size_t found(const Ints& tokens, int64_t most, std::string_view salt = {}) { return cache.find(tokens, most, salt).size(); }

  PagePool pool;
  PrefixCache cache{pool};
};

TEST(PrefixCache, GivesWholeCommittedPagesOfAnEqualBeginningOnly) {
  Rig rig(20);
  Sequence first = rig.sequence(counted(0, 300), 200);
  EXPECT_EQ(rig.publish(first), 192) << "the page of entries 192..199 is not whole";
  EXPECT_EQ(rig.found(counted(0, 300), 300), 3u);
  EXPECT_EQ(rig.found(counted(0, 300), 191), 2u) << "no more than asked for";
  auto other = counted(0, 300);
  other[70] = 9999;
  EXPECT_EQ(rig.found(other, 300), 1u);
  EXPECT_EQ(rig.found(counted(1, 300), 300), 0u);
}

TEST(PrefixCache, GivesNothingAcrossSalts) {
  Rig rig(20);
  Sequence mine = rig.sequence(counted(0, 300), 192), theirs = rig.sequence(counted(0, 300), 192);
  mine.cache_salt = "a", theirs.cache_salt = std::string("b\0", 2);
  rig.publish(mine);
  EXPECT_EQ(rig.found(counted(0, 300), 300, "a"), 3u);
  EXPECT_EQ(rig.found(counted(0, 300), 300), 0u);
  EXPECT_EQ(rig.found(counted(0, 300), 300, theirs.cache_salt), 0u);
  EXPECT_EQ(rig.publish(theirs), 192) << "the same tokens again, under pages of its own";
  const auto found = rig.cache.find(counted(0, 300), 300, theirs.cache_salt);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0], theirs.pages.page_of(0));
}

TEST(PrefixCache, KeepsPagesThatNobodyHoldsUntilThePoolNeedsThem) {
  Rig rig(4);
  {
    Sequence sequence = rig.sequence(counted(0, 200), 192);
    rig.publish(sequence);
    rig.release(sequence);
  }
  EXPECT_EQ(rig.pool.num_kept(), 3);
  EXPECT_EQ(rig.pool.num_free(), 4);
  PageTable table(4096);
  ASSERT_TRUE(table.grow_to(2 * kPageLen, rig.pool));  // one was free, one is surrendered: the end of the chain
  EXPECT_EQ(rig.found(counted(0, 200), 200), 2u);
  EXPECT_EQ(rig.pool.num_free(), 0);
  EXPECT_FALSE(table.grow_to(3 * kPageLen, rig.pool)) << "held pages are nobody else's";
}

TEST(PrefixCache, GivesUpWhatWasNotUsedForLongest) {
  Rig rig(5);
  for (const int32_t from : {0, 1000}) {
    Sequence sequence = rig.sequence(counted(from, 130), 128);
    rig.publish(sequence);
    rig.release(sequence);
  }
  for (const int32_t page : rig.cache.find(counted(0, 130), 130)) rig.pool.give_back(page);
  PageTable table(4096);
  ASSERT_TRUE(table.grow_to(3 * kPageLen, rig.pool));
  EXPECT_EQ(rig.found(counted(0, 130), 130), 2u);
  EXPECT_EQ(rig.found(counted(1000, 130), 130), 0u);
}

// What continues such a page may be held, by one who computed the beginning too.
TEST(PrefixCache, EveryPageThatNobodyHoldsCanBeHad) {
  Rig rig(10);
  auto tokens = counted(0, 200);
  Sequence first = rig.sequence(tokens, 128), stranger = rig.sequence(counted(1000, 70), 64);
  tokens[150] = 9999;
  Sequence other = rig.sequence(tokens, 192);
  for (const Sequence* sequence : {&first, &other, &stranger}) rig.publish(*sequence);
  rig.release(first);
  EXPECT_EQ(rig.pool.num_kept(), 2);
  PageTable table(4096);
  EXPECT_TRUE(table.grow_to(rig.pool.num_free() * kPageLen, rig.pool));
  EXPECT_EQ(rig.found(tokens, 192), 0u);
  EXPECT_EQ(rig.found(counted(1000, 70), 64), 1u);
  rig.release(other);
  EXPECT_EQ(rig.pool.num_kept(), 0);
}

TEST(PrefixCache, TwoWhoComputedTheSameShareOneChain) {
  Rig rig(20);
  Sequence a = rig.sequence(counted(0, 200), 130), b = rig.sequence(counted(0, 200), 130);
  PrefixCache::Published of_b;
  EXPECT_EQ(rig.publish(a), 128);
  rig.cache.publish(b, of_b);
  EXPECT_EQ(of_b.entries, 128);
  b.committed_len = 199;
  ASSERT_TRUE(b.pages.grow_to(200, rig.pool));
  rig.cache.publish(b, of_b);
  EXPECT_EQ(of_b.entries, 192) << "its third page continues the chain that the other published";
  rig.release(a);
  rig.release(b);
  EXPECT_EQ(rig.pool.num_kept(), 3);
  EXPECT_EQ(rig.found(counted(0, 200), 200), 3u);
}

// Called after every token. A beginning that somebody else made known, or that was given up, used to cost a look at all of it.
TEST(PrefixCache, PublishingATokenCostsNothingAndAPageOneLookHoweverLongTheSequence) {
  constexpr int64_t kPages = 40, kMore = 5;
  const auto tokens = counted(0, (kPages + kMore) * kPageLen);
  for (const bool known : {false, true})
    for (const bool given_up : {false, true}) {
      Rig rig(2 * (kPages + kMore) + 2);
      Sequence other = rig.sequence(tokens, known ? tokens.size() : 0), own = rig.sequence(tokens, kPages * kPageLen);
      rig.publish(other);
      PrefixCache::Published so_far;
      rig.cache.publish(own, so_far);
      rig.release(other);
      if (given_up) rig.cache.clear();
      const int64_t before = rig.cache.pages_sought();
      for (int64_t len = kPages * kPageLen; len <= std::ssize(tokens); ++len) {
        own.committed_len = len;
        ASSERT_TRUE(own.pages.grow_to(len, rig.pool));
        rig.cache.publish(own, so_far);
      }
      EXPECT_EQ(rig.cache.pages_sought() - before, kMore) << known << given_up;
      EXPECT_EQ(so_far.entries, (given_up ? kPages : kPages + kMore) * kPageLen);
    }
}

// The page under which a sequence goes on may leave and come back as something else.
TEST(PrefixCache, NothingHangsUnderAPageThatWasGivenUp) {
  Rig rig(6);
  Sequence other = rig.sequence(counted(0, 200), 128), own = rig.sequence(counted(0, 200), 128);
  rig.publish(other);
  PrefixCache::Published so_far;
  rig.cache.publish(own, so_far);
  rig.release(other);
  rig.cache.clear();
  EXPECT_EQ(rig.pool.num_kept(), 0);
  Sequence stranger = rig.sequence(counted(1000, 200), 128);  // in the pages that the other had
  rig.publish(stranger);
  own.committed_len = 192;
  rig.cache.publish(own, so_far);
  EXPECT_EQ(so_far.entries, 128);
  auto mixed = counted(1000, 128);
  mixed.insert(mixed.end(), own.tokens.begin() + 128, own.tokens.end());
  EXPECT_EQ(rig.found(mixed, 200), 2u);
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
  Rig rig(4);
  const Sequence sequence = rig.sequence(one, 70);
  rig.publish(sequence);
  EXPECT_EQ(rig.found(one, 80), 1u);
  EXPECT_EQ(rig.found(other, 80), 0u);
}

TEST(PrefixCache, ForgetsEverythingButLeavesHeldPagesToTheirHolders) {
  Rig rig(6);
  Sequence held = rig.sequence(counted(0, 200), 192);
  rig.publish(held);
  rig.cache.clear();
  EXPECT_EQ(rig.found(counted(0, 200), 200), 0u);
  rig.release(held);
  EXPECT_EQ(rig.pool.num_free(), 6);
  EXPECT_EQ(rig.pool.num_kept(), 0);
}

}
}
