// What a network that takes tokens alone is fed: every committed token once, in order, from position 0 on, whatever waits, is
// shared, rolled back or comes back. The network here says token + 1 and keeps a book of its rows.
#include "draft/follower.h"

#include "draft/test_drafts.h"
#include "model/shape_only.h"

namespace hunch {
namespace {

using namespace test;

constexpr int kVocab = 8192, kMaxDraft = 64;

struct Row {
  int64_t position;
  int32_t id;
  bool operator==(const Row&) const = default;
};
using Rows = std::vector<Row>;

// Rows [first, last) of a sequence.
Rows rows_of(const Sequence& sequence, int64_t first, int64_t last) {
  Rows rows;
  for (; first < last; ++first) rows.push_back({first, sequence.tokens[first]});
  return rows;
}

ModelShape toy_shape() {
  return {
      .family = "toy",
      .vocab_size = kVocab,
      .hidden = 8,
      .ffn = 8,
      .layers = 1,
      .heads = 1,
      .kv_heads = 1,
      .head_dim = 8,
      .context_len = 1 << 20,
  };
}

class NextNumber final : public DraftNet {
 public:
  NextNumber(std::vector<Rows>& passes, int64_t longest) : passes_(passes), longest_(longest) {}
  const ModelShape& shape() const override { return shape_; }
  size_t weight_bytes() const override { return 0; }
  bool takes_features() const override { return false; }
  int64_t longest() const override { return longest_; }
  void forward(Pass& pass, View<const float, 2>, View<float, 2>, View<float, 2> hidden) const override {
    Rows& rows = passes_.emplace_back();
    for (int64_t row = 0; row < pass.num_rows(); ++row) {
      rows.push_back({pass.positions()(row), pass.ids()(row)});
      hidden(row, 0) = float(pass.ids()(row));
    }
  }
  void logits(Backend&, View<const float, 2> hidden, View<float, 2> logits) const override {
    for (int64_t row = 0; row < hidden.extent[0]; ++row)
      for (int64_t id = 0; id < kVocab; ++id) logits(row, id) = id == int64_t(hidden(row, 0)) + 1 ? 1.0f : 0.0f;
  }

 private:
  std::vector<Rows>& passes_;
  ModelShape shape_ = toy_shape();
  int64_t longest_;
};

// A follower with some seats and a pool, and what its engine would do with it.
class Follows : public testing::Test {
 protected:
  void make(int seats, int64_t max_rows, int64_t longest = INT64_MAX) {
    backend_ = Register<Backend>::find("reference")->make({}).value();
    follower_ = std::make_unique<Follower>(
        Proposer::Setup{.backend = backend_.get(), .target = &target_, .max_draft = kMaxDraft, .max_sequences = seats},
        std::make_unique<NextNumber>(passes_, longest));
    const Needs needs = follower_->needs();
    ASSERT_TRUE(needs.rows && needs.kv && needs.taps.empty() && needs.page_floats == 0);
    KvGeometry geometry = *needs.kv;
    geometry.dtype = DType::F32;
    follower_->move_in({.kv = backend_->make_kv_store(geometry, 64), .pool = &pool_, .max_rows = max_rows, .context_len = 4096});
  }
  // Tokens first, first + 1, ...: `len` of the prompt.
  Sequence seated(Slot slot, int64_t len, int32_t first, const Tokens& found = {}) {
    Sequence out = sequence_of({}, slot);
    for (int32_t i = 0; i < len; ++i) out.tokens.push_back(first + i);
    out.prompt_len = len;
    out.pages = PageTable(4096);
    out.pages.adopt(found);
    out.committed_len = std::ssize(found) * kPageLen;
    out.sampling.temperature = 0;
    follower_->open(out);
    return out;
  }
  // Entries from `first` on became final in a pass.
  void follow_from(Sequence& sequence, int64_t first) {
    ASSERT_TRUE(sequence.pages.grow_to(sequence.committed_len + 1 + kMaxDraft, pool_));
    const TargetRows rows{.sequence = &sequence, .first_position = first, .count = sequence.committed_len - first};
    follower_->follow(std::span(&rows, 1));
  }
  void follow(Sequence& sequence, int64_t committed_len) {
    follow_from(sequence, std::exchange(sequence.committed_len, committed_len));
  }
  void begin_round() { passes_.clear(); }
  Tokens drafted(const Sequence& sequence, int most) { return draft(*follower_, sequence, most); }
  // The target keeps `kept` of a chain and says `next`.
  void verify(Sequence& sequence, const Tokens& chain, size_t kept, int32_t next) {
    Verdict verdict;
    for (size_t i = 0; i < kept; ++i) verdict.path.push_back(int(i)), verdict.tokens.push_back(chain[i]);
    verdict.next = next;
    const int64_t first = sequence.committed_len;
    sequence.tokens.insert(sequence.tokens.end(), chain.begin(), chain.begin() + kept);
    sequence.tokens.push_back(next);
    sequence.committed_len += kept + 1;
    follower_->observe(sequence, verdict);
    follow_from(sequence, first);
  }
  Rows all_rows() const {
    Rows all;
    for (const Rows& pass : passes_) all.insert(all.end(), pass.begin(), pass.end());
    return all;
  }

  ShapeOnly target_{toy_shape()};
  PagePool pool_{64};
  std::unique_ptr<Backend> backend_;
  std::vector<Rows> passes_;
  std::unique_ptr<Follower> follower_;
};

TEST_F(Follows, ShortPromptsWaitForTheFirstDraft) {
  make(1, 128);
  Sequence s = seated(0, 21, 100);
  follow(s, 20);
  EXPECT_TRUE(passes_.empty());
  EXPECT_EQ(drafted(s, 3), (Tokens{121, 122, 123}));
  ASSERT_EQ(passes_.size(), 3u);
  EXPECT_EQ(passes_[0], rows_of(s, 0, 21));
  EXPECT_EQ(passes_[1], (Rows{{21, 121}}));
  EXPECT_EQ(passes_[2], (Rows{{22, 122}}));
}

TEST_F(Follows, PromptChunksGoThroughAtOnceHoweverLong) {
  make(1, 100);  // 166 rows of a pass
  Sequence s = seated(0, 501, 100);
  follow(s, 100);
  EXPECT_EQ(all_rows(), rows_of(s, 0, 100));
  follow(s, 500);
  EXPECT_EQ(all_rows(), rows_of(s, 0, 500));
  EXPECT_EQ(drafted(s, 1), (Tokens{601}));
  EXPECT_EQ(all_rows(), rows_of(s, 0, 501));
  for (const Rows& pass : passes_) EXPECT_LE(pass.size(), 166u);
}

TEST_F(Follows, ReadsNoTokenTwiceThatItDraftedItself) {
  make(1, 128);
  Sequence s = seated(0, 11, 100);
  follow(s, 10);
  Tokens chain = drafted(s, 4);
  ASSERT_EQ(chain, (Tokens{111, 112, 113, 114}));
  verify(s, chain, 4, 500);  // all kept: the last was never read
  begin_round();
  chain = drafted(s, 4);
  EXPECT_EQ(chain, (Tokens{501, 502, 503, 504}));
  EXPECT_EQ(passes_[0], (Rows{{14, 114}, {15, 500}}));
  verify(s, chain, 2, 700);
  begin_round();
  chain = drafted(s, 2);
  EXPECT_EQ(chain, (Tokens{701, 702}));
  EXPECT_EQ(passes_[0], (Rows{{18, 700}}));
  verify(s, chain, 0, 800);
  begin_round();
  EXPECT_EQ(drafted(s, 1), (Tokens{801}));
  EXPECT_EQ(passes_[0], (Rows{{19, 800}}));
}

TEST_F(Follows, WhatOthersDraftedIsReadLikeAnyText) {
  make(1, 128);
  Sequence s = seated(0, 11, 100);
  follow(s, 10);
  verify(s, drafted(s, 4), 1, 500);
  verify(s, {7, 8, 9}, 3, 600);  // a look-up's
  begin_round();
  EXPECT_EQ(drafted(s, 2), (Tokens{601, 602}));
  EXPECT_EQ(passes_[0], rows_of(s, 12, 17));
}

TEST_F(Follows, RowsThatDoNotFitGoThroughBefore) {
  make(3, 4);  // 70 rows of a pass
  std::vector<Sequence> all;
  for (Slot slot = 0; slot < 3; ++slot) all.push_back(seated(slot, 61, 1000 * (slot + 1)));
  for (Sequence& s : all) follow(s, 60);
  EXPECT_TRUE(passes_.empty());
  std::vector<std::unique_ptr<Tree>> trees;
  std::vector<DraftTask> tasks;
  for (const Sequence& s : all) {
    trees.push_back(std::make_unique<Tree>());
    tasks.push_back({.sequence = &s, .limits = {.max_tokens = 2}, .tree = &trees.back()->tree});
  }
  follower_->propose(tasks);
  std::vector<Rows> of(3);
  for (const Rows& pass : passes_) {
    EXPECT_LE(pass.size(), 70u);
    for (const Row& row : pass) of[row.id / 1000 - 1].push_back(row);
  }
  for (size_t i = 0; i < 3; ++i) {
    const auto first = int32_t(1000 * (i + 1));
    EXPECT_EQ(trees[i]->tokens(), (Tokens{first + 61, first + 62}));
    Rows expected = rows_of(all[i], 0, 61);
    expected.push_back({61, first + 61});
    EXPECT_EQ(of[i], expected);
  }
}

TEST_F(Follows, SharedPagesAreReadOnceByWhoeverComesFirst) {
  make(3, 128);
  const auto expect_read = [&](int64_t from, Slot slot, const Tokens& found) {
    begin_round();
    Sequence s = seated(slot, 200, 100, found);
    follow(s, 199);
    EXPECT_EQ(drafted(s, 1), (Tokens{300}));
    EXPECT_EQ(all_rows(), rows_of(s, from, 200));
    return s;
  };
  const Sequence first = expect_read(0, 0, {});
  const Tokens pages{first.pages.page_of(0), first.pages.page_of(64), first.pages.page_of(128)};
  const Sequence second = expect_read(192, 1, pages);

  // A page that was taken for something else since is not what it was: that one and those behind it are read again.
  Tokens renewed = pages;
  renewed[1] = *pool_.take();
  const Sequence third = expect_read(64, 2, renewed);
  follower_->close(2);
  const Sequence again = expect_read(192, 2, renewed);
}

TEST_F(Follows, ASeatForgetsWhoLeftIt) {
  make(1, 128);
  Sequence s = seated(0, 31, 100);
  follow(s, 30);
  (void)drafted(s, 4);
  follower_->close(0);  // preempted between its draft and the pass
  Sequence other = seated(0, 11, 2000);
  follow(other, 10);
  verify(other, {1, 2}, 2, 3000);
  begin_round();
  EXPECT_EQ(drafted(other, 1), (Tokens{3001}));
  EXPECT_EQ(all_rows(), rows_of(other, 0, 14));
}

TEST_F(Follows, NothingIsReadPastTheNetworksLongest) {
  make(1, 128, 100);
  Sequence s = seated(0, 97, 100);
  follow(s, 96);
  EXPECT_EQ(drafted(s, 9), (Tokens{197, 198, 199, 200}));
  verify(s, {197, 198, 199, 200}, 4, 700);
  EXPECT_EQ(drafted(s, 9), Tokens{});
  while (s.committed_len < 400) verify(s, {1, 2, 3}, 3, 4);
  EXPECT_EQ(drafted(s, 9), Tokens{});
  for (const Row& row : all_rows()) EXPECT_LT(row.position, 100);
}

}
}
