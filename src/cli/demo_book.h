// A record book with facts all over it, made deterministically from templates: the prompts of `hunch demo` and the end-to-end
// rows of `hunch bench`. The shipped model was trained to look things up in texts of this kind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace hunch {

struct BookRecord {
  int number = 0, locker = 0;
  std::string name, trade, town, badge, item;
  std::string text() const;    // "Record 7: Mara Ellison, clerk, from Port Hallow. Badge QF-2093. Locker 4471. Deposited a lamp."
  std::string listed() const;  // "- 7: Mara Ellison, clerk"
};

struct DemoBook {
  std::vector<BookRecord> records;
  std::string asked_town;  // occurs in `asked`, spread over the whole book, and nowhere else
  std::vector<size_t> asked;

  std::string text() const;      // title and records, a line each
  std::string question() const;  // "List all entries from ..."
  // The book in a user's turn, then the question in another; ends where the assistant begins to answer.
  std::string question_prompt() const;
  // The bare book; ends where the next record begins.
  std::string continuation_prompt() const;
  // The lines of `answer` that are, and are not, what the book says; and what is missing.
  struct Check {
    std::vector<std::string> right, wrong, missing;
  };
  Check check(const std::string& answer) const;
};

// The same arguments make the same book.
DemoBook make_demo_book(int num_records, uint64_t seed);
// The book whose question prompt has as many tokens as fit into `max_tokens`. Errors: those of the tokenizer; no room for 16
// records.
Result<DemoBook> fit_demo_book(const Tokenizer& tokenizer, int64_t max_tokens, uint64_t seed);

}  // namespace hunch
