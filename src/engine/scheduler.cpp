#include "engine/scheduler.h"

namespace hunch {
namespace {

constexpr int64_t kStepsPerRank = 256;  // waiting so long is worth one level of priority: nobody starves

int64_t pages_of(int64_t entries) { return (entries + kPageLen - 1) / kPageLen; }

}

Scheduler::Scheduler(const SchedulerLimits& limits, PagePool& pool, PrefixCache* cache)
    : limits_(limits), pool_(pool), cache_(cache) {
  HUNCH_CHECK(limits.max_seqs > 0 && limits.rows >= limits.max_seqs + 2 * limits.selecting_rows);
  HUNCH_CHECK(limits.verify_rows >= limits.max_seqs && limits.chunk_len >= limits.selecting_rows);
  running_.reserve(limits.max_seqs);
  plan_.decodes.reserve(limits.max_seqs);
  plan_.chunks.reserve(limits.max_seqs);
  for (int slot = limits.max_seqs - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

bool Scheduler::before(const Scheduled* a, const Scheduled* b) {
  if (a->paused != b->paused) return b->paused;  // nobody waits for pages that a slow consumer's request holds
  const int64_t rank_a = a->priority - a->waited / kStepsPerRank, rank_b = b->priority - b->waited / kStepsPerRank;
  return rank_a != rank_b ? rank_a < rank_b : a->arrival < b->arrival;
}

void Scheduler::remove(Scheduled& who) {
  if (who.seated_now) {
    leave_seat(who);
    std::erase(running_, &who);
  } else {
    std::erase(waiting_, &who);
  }
}

void Scheduler::preempt(Scheduled& who) {
  ++stats_.preemptions;
  leave_seat(who);
  std::erase(running_, &who);
  // It may have been planned before somebody of better rank was seated; its rows are lost to this step.
  std::erase_if(plan_.decodes, [&](const auto& decode) { return decode.who == &who; });
  std::erase_if(plan_.chunks, [&](const auto& chunk) { return chunk.who == &who; });
  // All but the pending token is run again; before the first token came, the whole prompt.
  Sequence& sequence = who.sequence;
  sequence.committed_len = 0;
  who.published = {};
  who.prefill_target = std::max(who.prefill_target, sequence.len() > sequence.prompt_len ? sequence.len() - 1 : 0);
  waiting_.insert(std::ranges::upper_bound(waiting_, &who, before), &who);
}

// Pages for `entries`, at the cost of those paused or of worse rank. False: nobody is left to take them from (and `who` was
// preempted itself, if so wished).
bool Scheduler::reserve(Scheduled& who, int64_t entries, bool preempt_itself) {
  while (!who.sequence.pages.grow_to(entries, pool_)) {
    Scheduled* worst = *std::ranges::max_element(running_, before);
    if (worst == &who && !preempt_itself) return false;
    preempt(*worst);
    if (worst == &who) return false;
  }
  return true;
}

const StepPlan& Scheduler::next() {
  plan_.decodes.clear();
  plan_.chunks.clear();
  for (Scheduled* who : waiting_) who->waited += !who->paused;
  std::ranges::sort(waiting_, before);
  std::ranges::sort(running_, before);

  // Best rank first, so that whoever is preempted has not been planned yet.
  int64_t budget = limits_.rows;
  for (size_t i = 0; i < running_.size();) {
    Scheduled& who = *running_[i];
    if (who.prefilling() || who.paused) {
      ++i;
      continue;
    }
    if (!reserve(who, who.sequence.committed_len + 1, true)) continue;
    plan_.decodes.push_back({&who, 0});
    --budget;
    ++i;
  }

  if (plan_.decodes.empty()) budget = limits_.most_rows();
  int64_t wanted = 0;
  for (const auto& decode : plan_.decodes) wanted += decode.who->want_drafts;
  int64_t for_drafts = std::min({wanted, budget / 2, limits_.verify_rows - std::ssize(plan_.decodes)});
  int64_t for_chunks = budget - for_drafts;
  for (size_t i = 0; i < running_.size(); ++i) {
    Scheduled& who = *running_[i];
    if (who.prefilling() && !who.paused) plan_chunk(who, for_chunks);
  }
  while (for_chunks >= limits_.selecting_rows && admit_next()) plan_chunk(*running_.back(), for_chunks);

  if (plan_.chunks.empty()) for_drafts = std::min(budget, limits_.verify_rows - std::ssize(plan_.decodes));
  stats_.drafts_dropped += wanted - deal_drafts(for_drafts);
  return plan_;
}

void Scheduler::plan_chunk(Scheduled& who, int64_t& budget) {
  const Sequence& sequence = who.sequence;
  const int64_t left = who.prefill_target - sequence.committed_len;
  const int64_t alone = plan_.decodes.empty() ? limits_.alone_rows : 0;
  const int64_t most = std::max(limits_.chunk_len, std::min(alone, limits_.alone_reads / (sequence.committed_len + alone + 1)));
  int64_t rows = std::min({left, most, budget});
  // The rows that the first selection is taken from stay in one chunk.
  if (rows < left) rows = std::min(rows, std::max<int64_t>(0, left - selecting_rows(who)));
  if (rows <= 0 || !reserve(who, sequence.committed_len + rows, false)) return;
  plan_.chunks.push_back({&who, rows, rows == left});
  budget -= std::max(rows, rows * alone / most);
}

// True if a running request is about to compute pages that `who` could share: worth waiting for.
bool Scheduler::somebody_computes_more(const Scheduled& who, int64_t found) const {
  for (const Scheduled* other : running_) {
    if (!other->use_cache || !other->prefilling() || other->paused) continue;
    if (other->sequence.cache_salt != who.sequence.cache_salt) continue;
    const auto &a = who.sequence.tokens, &b = other->sequence.tokens;
    const int64_t most = std::min(who.prefill_target - selecting_rows(who), other->prefill_target);
    if (most <= found) continue;
    const int64_t alike = std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin();
    if (alike / kPageLen * kPageLen > std::max(found, other->sequence.committed_len)) return true;
  }
  return false;
}

// Takes the seat of the worst of those who are paused. False: nobody is.
bool Scheduler::unseat_paused() {
  for (auto who = running_.rbegin(); who != running_.rend(); ++who) {
    if (!(*who)->paused) continue;
    preempt(**who);
    return true;
  }
  return false;
}

// Seats the best of those who wait, if there is a slot and pages for all of its target. Nobody overtakes it; who is paused
// neither waits nor keeps a seat that it wants: its consumer may wait for the other.
bool Scheduler::admit_next() {
  if (waiting_.empty() || waiting_.front()->paused) return false;
  Scheduled& who = *waiting_.front();
  if (free_slots_.empty() && !unseat_paused()) return false;
  Sequence& sequence = who.sequence;
  std::vector<int32_t> shared;
  const bool look = cache_ && who.use_cache;
  if (look) shared = cache_->find(sequence.tokens, who.prefill_target - selecting_rows(who), sequence.cache_salt);
  const int64_t found = std::ssize(shared) * kPageLen;
  const auto room = [&] { return pages_of(who.prefill_target + 1) - std::ssize(shared) <= pool_.num_free(); };
  bool fits = room();
  while (!fits && unseat_paused()) fits = room();
  if ((!running_.empty() && !fits) || (look && somebody_computes_more(who, found))) {
    for (auto page = shared.rbegin(); page != shared.rend(); ++page) pool_.give_back(*page);
    return false;
  }
  waiting_.erase(waiting_.begin());
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  sequence.pages.adopt(shared);
  sequence.committed_len = found, who.published = {.entries = found};
  sequence.compressed_len = 0;  // the slot is another's past
  if (sequence.len() == sequence.prompt_len) who.found = found;
  stats_.prefix_asked += look ? who.prefill_target : 0;
  stats_.prefix_found += found;
  who.seated_now = true;
  running_.push_back(&who);
  who.seated();
  return true;
}

// Deals `rows` drafts one by one, so that nobody takes what others could use; returns how many were granted.
int64_t Scheduler::deal_drafts(int64_t rows) {
  int64_t dealt = 0;
  for (bool any = true; any && dealt < rows;) {
    any = false;
    for (StepPlan::Decode& decode : plan_.decodes) {
      if (dealt == rows || decode.drafts >= decode.who->want_drafts) continue;
      Sequence& sequence = decode.who->sequence;
      if (!sequence.pages.grow_to(sequence.committed_len + decode.drafts + 2, pool_)) continue;
      ++decode.drafts, ++dealt, any = true;
    }
  }
  return dealt;
}

void Scheduler::committed(Scheduled& who) {
  if (cache_ && who.use_cache && who.sequence.committed_len <= who.exact_len) cache_->publish(who.sequence, who.published);
}

}
