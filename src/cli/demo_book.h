// A record book with facts all over it, made from templates: the prompts of `hunch demo` and the end-to-end rows of `hunch
// bench`. The shipped model was trained to look things up in such texts.
#pragma once

#include "text/tokenizer.h"

namespace hunch {

struct BookRecord {
  int number = 0, locker = 0;
  std::string name, trade, town, badge, item;
  std::string text() const;  // "Record 7: Mara Ellison, clerk, from Port Hallow. Badge QF-2093. Locker 4471. Deposited a lamp."
};

// A question in a form that the shipped model knows, and the facts that its answer must name.
struct BookQuestion {
  std::string text;
  size_t record = 0;
  std::vector<std::string> facts;
  bool answered_by(const std::string& answer) const;
};

struct DemoBook {
  std::vector<BookRecord> records;
  std::vector<BookQuestion> questions;  // about an early, a middle and a late record
  std::string copy_question;            // asks for several records word for word: a long answer

  std::string text() const;  // title and records, a line each; continuing it means writing the next record
  // The book in a user's turn, then the question in another; ends where the assistant begins to answer.
  std::string ask(const std::string& question) const;
};

// The same arguments make the same book.
DemoBook make_demo_book(int num_records, uint64_t seed);
// The longest book whose questions have at most `max_tokens` tokens. Errors: those of the tokenizer; no room for 16
// records.
Result<DemoBook> fit_demo_book(const Tokenizer& tokenizer, int64_t max_tokens, uint64_t seed);

}
