// Records are drawn by counter-based noise, so the book is the same on every machine and with every standard library.
#include "cli/demo_book.h"

#include <algorithm>
#include <set>

#include "base/failure.h"
#include "base/random.h"

namespace hunch {
namespace {

constexpr std::string_view kFirst[] = {"Mara", "Tobin", "Ilse", "Corvin", "Petra", "Anselm", "Neve", "Oskar", "Rhea", "Elias",
    "Freya", "Gideon", "Hattie", "Juno", "Lorna", "Magnus", "Nadia", "Phoebe", "Silas", "Thea", "Viola", "Abel", "Cyrus", "Delia",
    "Edmund", "Flora", "Gareth", "Hana", "Ingrid", "Jasper", "Kira", "Maeve", "Otis", "Priya", "Rufus", "Sabine", "Victor",
    "Willa", "Esther", "Felix", "Hugo", "Jonas", "Lucian", "Odette"};
constexpr std::string_view kLast[] = {"Ellison", "Marlow", "Harker", "Vance", "Thorne", "Ashby", "Draycott", "Fenwick", "Garrick",
    "Hale", "Jessup", "Merrow", "Oakes", "Penrose", "Quill", "Sedgwick", "Varga", "Whitlock", "Abbott", "Brandt", "Calder",
    "Devlin", "Farrow", "Greaves", "Holloway", "Irvine", "Jarrett", "Langley", "Mercer", "Norwood", "Orland", "Prescott",
    "Radley", "Tolland", "Upton", "Wardlow", "Alder", "Bramley", "Dunmore", "Foxley", "Hobbs", "Knox", "Nash", "Moorcroft"};
constexpr std::string_view kTrades[] = {"clerk", "surveyor", "pilot", "baker", "engineer", "nurse", "printer", "gardener",
    "carpenter", "teacher", "driver", "chemist", "librarian", "sailor", "tailor", "mason", "cook", "painter"};
constexpr std::string_view kTowns[] = {"Greywater", "Saltmarsh", "Kingsbarrow", "Elder Quay", "Coldharbour", "Tarn Hollow",
    "Brindle Bay", "Lowmoor", "Stonebridge", "Dunwick", "Oxmere", "Silverdale", "Thornbury", "Wexcombe", "Amberley", "Blackrigg",
    "Eastholm", "Gullmouth", "Hexley", "Kelmarsh", "Larkspur", "Netherby", "Pellworth", "Rookhope", "Tidewell", "Vinton"};
constexpr std::string_view kItems[] = {"brass compass", "wool coat", "cello", "typewriter", "sealed letter", "telescope",
    "box of chalk", "copper kettle", "camera", "sack of flour", "toolbox", "music stand", "ladder", "bicycle", "glass jar",
    "globe", "coil of rope", "silver spoon", "chess set", "umbrella", "clock", "fishing net", "birdcage", "drum", "pocket watch",
    "violin bow", "hatbox", "suitcase", "ship model", "mirror", "lamp", "rug", "microscope"};

// Draws by counter, so that a book does not depend on any library's generator.
class Dice {
 public:
  explicit Dice(uint64_t seed) : key_{seed, 0} {}
  uint32_t below(uint32_t n) { return uint32_t((uint64_t(noise_bits(key_, NoiseStream::Target, 0, next_++)) * n) >> 32); }
  std::string_view pick(std::span<const std::string_view> from) { return from[below(uint32_t(from.size()))]; }

 private:
  NoiseKey key_;
  uint32_t next_ = 0;
};

std::string badge(Dice& dice) {
  const auto letter = [&] { return char('A' + dice.below(26)); };
  const char first = letter(), second = letter();  // in an order that does not hang on the compiler's
  return fmt::format("{}{}-{}", first, second, 1000 + dice.below(9000));
}

constexpr std::string_view kOpen = "<|im_start|>", kClose = "<|im_end|>\n";

}

std::string BookRecord::text() const {
  return fmt::format(
      "Record {}: {}, {}, from {}. Badge {}. Locker {}. Deposited a {}.", number, name, trade, town, badge, locker, item);
}

bool BookQuestion::answered_by(const std::string& answer) const {
  return std::ranges::all_of(facts, [&](const std::string& fact) { return answer.find(fact) != answer.npos; });
}

DemoBook make_demo_book(int num_records, uint64_t seed) {
  Dice dice(seed);
  DemoBook book;
  std::set<std::string> names;
  const int first = 11 + int(dice.below(80));
  for (int i = 0; i < num_records; ++i) {
    BookRecord r;
    r.number = first + i;
    do {
      const auto given = dice.pick(kFirst), family = dice.pick(kLast);
      r.name = fmt::format("{} {}", given, family);
    } while (names.size() < std::size(kFirst) * std::size(kLast) / 2 && !names.insert(r.name).second);  // people are distinct
    r.trade = dice.pick(kTrades);
    r.town = dice.pick(kTowns);
    r.badge = badge(dice);
    r.locker = 100 + int(dice.below(9900));
    r.item = dice.pick(kItems);
    book.records.push_back(std::move(r));
  }
  if (num_records < 8) return book;  // too few to ask about different places
  const auto at = [&](double share) -> const BookRecord& { return book.records[share * num_records]; };
  const BookRecord &early = at(0.12), &middle = at(0.47), &late = at(0.78), &copied = at(0.3);
  const auto index = [&](const BookRecord& record) { return size_t(&record - book.records.data()); };
  book.questions = {
      {fmt::format("Which badge does {} have?", early.name), index(early), {early.badge}},
      {fmt::format("Quote record {}.", middle.number), index(middle), {middle.text()}},
      {fmt::format("Where does {} come from, and what is the trade?", late.name), index(late), {late.town, late.trade}},
  };
  book.copy_question = fmt::format("Copy the record numbers {} to {}.", copied.number, copied.number + 4);
  return book;
}

std::string DemoBook::text() const {
  std::string out = "REGISTER OF DEPOSITS\n";
  for (const BookRecord& record : records) out += record.text() + "\n";
  return out;
}

std::string DemoBook::ask(const std::string& question) const {
  return fmt::format(
      "{0}user\nRead the following record book.\n\n{1}\nPlease keep this text at hand; I will ask about "
      "it.{2}{0}assistant\nReady.{2}"
      "{0}user\n{3}{2}{0}assistant\n",
      kOpen, text(), kClose, question);
}

Result<DemoBook> fit_demo_book(const Tokenizer& tokenizer, int64_t max_tokens, uint64_t seed) {
  // Records differ little in length: two proportional steps land within one record of the goal, then whole records come off.
  int num_records = int(std::max<int64_t>(16, max_tokens / 40));
  for (int step = 0; step < 12; ++step) {
    DemoBook book = make_demo_book(num_records, seed);
    HUNCH_TRY(const auto ids, tokenizer.encode(book.ask(book.questions.back().text)));
    const int64_t length = std::ssize(ids), per_record = std::max<int64_t>(1, length / num_records);
    if (length <= max_tokens && length + 2 * per_record > max_tokens) return book;
    if (length <= max_tokens && step >= 10) return book;
    const int64_t least = length - (num_records - 16) * per_record;
    const int64_t change = (max_tokens - length) / per_record;
    num_records += int(change != 0 ? change : max_tokens > length ? 1 : -1);
    if (num_records < 16) return failure("a record book needs about {} tokens; {} do not hold one", least, max_tokens);
  }
  return make_demo_book(std::max(16, num_records - 4), seed);
}

}
