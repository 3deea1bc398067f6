// Scheduler: who runs in the next step, with how many rows. There are no phases of prefill and decode: every request catches up
// with its tokens, one that drafts wants a few rows more. One budget of rows bounds a step; drafts go before anybody is
// preempted. Who comes first: docs/how-it-works.md.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kv/page_pool.h"
#include "kv/prefix_cache.h"
#include "kv/sequence.h"

namespace hunch {

// What the scheduler knows of a request. Owned by whoever added it, until removed.
struct Scheduled {
  virtual ~Scheduled() = default;
  // It has a slot (sequence.slot) and its first pages; it lost them (state kept by slot is void).
  virtual void seated() {}
  virtual void unseated() {}

  Sequence sequence;
  int priority = 0;
  int64_t arrival = 0;         // given by the scheduler
  int64_t waited = 0;          // steps spent in the queue
  int64_t prefill_target = 0;  // entries to run before the next token comes of it
  PrefixCache::Published published;
  int want_drafts = 0;     // for the next step; set by the caller before next()
  int selecting_rows = 0;  // the last rows of its target run in one chunk; at most the limits' most_selecting()
  int64_t found = 0;       // entries that the prefix cache had when it was first seated
  bool use_cache = true;
  int64_t exact_len = INT64_MAX;  // entries past it are not what a pass over the tokens would leave: the cache never gets them
  bool paused = false;            // runs no rows until it is cleared; keeps seat and pages while nobody else wants them
  bool seated_now = false;

  bool prefilling() const { return sequence.committed_len < prefill_target; }
};

struct StepPlan {
  struct Decode {
    Scheduled* who = nullptr;
    int drafts = 0;  // granted; pages are there
  };
  struct Chunk {
    Scheduled* who = nullptr;
    int64_t rows = 0;
    bool last = false;  // reaches the target
  };
  std::vector<Decode> decodes;
  std::vector<Chunk> chunks;
  bool empty() const { return decodes.empty() && chunks.empty(); }
};

struct SchedulerLimits {
  int max_seqs = 1;
  int64_t rows = 512;        // of a step; at least max_seqs + 2 selecting_rows
  int64_t verify_rows = 65;  // of those, at most so many that are not a prompt's; at least max_seqs
  int64_t chunk_len = 512;
  // Of a step and of a chunk where no request decodes, if that is more; of a chunk's rows times its entries, as scratch grows
  // with them.
  int64_t alone_rows = 0, alone_reads = int64_t(1) << 26;
  int64_t most_rows() const { return std::max(rows, alone_rows); }
  int selecting_rows = 2;  // that a target leaves to run even where the prefix cache has all of it
  // Rows that one request may keep in one chunk: there is always a step with room for them.
  int most_selecting() const { return int(std::max<int64_t>(selecting_rows, std::min(chunk_len, (rows - max_seqs) / 2))); }
};

struct SchedulerStats {
  int64_t preemptions = 0, drafts_dropped = 0, prefix_asked = 0, prefix_found = 0;
};

class Scheduler {
 public:
  Scheduler(const SchedulerLimits&, PagePool&, PrefixCache*);

  void add(Scheduled& who) {
    who.arrival = arrivals_++;
    waiting_.push_back(&who);
  }
  // Ends it wherever it is: pages and slot are free afterwards.
  void remove(Scheduled&);
  // The next step. Valid until the next call; the caller runs it and moves committed_len.
  const StepPlan& next();
  // After the step: the entries that became final are offered to the prefix cache.
  void committed(Scheduled&);

  int num_running() const { return int(running_.size()); }
  int num_waiting() const { return int(waiting_.size()); }
  const std::vector<Scheduled*>& running() const { return running_; }
  const SchedulerStats& stats() const { return stats_; }

 private:
  int selecting_rows(const Scheduled& who) const {
    return std::clamp(who.selecting_rows, limits_.selecting_rows, limits_.most_selecting());
  }
  static bool before(const Scheduled* a, const Scheduled* b);
  bool reserve(Scheduled& who, int64_t entries, bool preempt_itself);
  void preempt(Scheduled& who);
  void leave_seat(Scheduled& who) {
    who.unseated();
    who.seated_now = false;
    who.sequence.pages.release_past(0, pool_);
    free_slots_.push_back(who.sequence.slot);
  }
  void plan_chunk(Scheduled& who, int64_t& budget);
  bool admit_next();
  bool unseat_paused();
  bool somebody_computes_more(const Scheduled& who, int64_t found) const;
  int64_t deal_drafts(int64_t rows);

  SchedulerLimits limits_;
  PagePool& pool_;
  PrefixCache* cache_;
  std::vector<Scheduled*> waiting_, running_;  // best rank first
  std::vector<Slot> free_slots_;
  StepPlan plan_;
  int64_t arrivals_ = 0;
  SchedulerStats stats_;
};

}
