// hunch chat: a conversation with history. Ctrl-C stops the current answer, Ctrl-D leaves.
#include <unistd.h>

#include <iostream>

#include "cli/chat_form.h"
#include "cli/commands.h"
#include "cli/generating.h"
#include "cli/interrupt.h"
#include "cli/report.h"
#include "text/unicode.h"

namespace hunch {
namespace {

struct ChatFlags {
  ModelFlags model;
  SamplingFlags sampling;
  SpeculationFlags speculation;
  std::optional<std::string> system;
  ChatTemplateFlags chat_template;
  bool stats = false;
  ColorWish color = ColorWish::Auto;
};

class Chat {
 public:
  Chat(Engine& engine, ChatForm form, Request request, const ChatFlags& flags, ProgressLine& progress)
      : engine_(engine), form_(std::move(form)), request_(std::move(request)), flags_(flags), progress_(progress) {
    request_.stop_ids = form_.stop_ids();  // a base model may not know its own template's end mark as an end of text
    clear();
  }

  // Until the input ends or /exit. Returns the exit code.
  int talk() {
    const bool interactive = stdin_is_terminal();
    const Paint paint{color_wanted(flags_.color, stderr_is_terminal())};
    if (interactive)
      tell("/clear forgets, /stats shows the last answer's figures, /exit or Ctrl-D leaves, Ctrl-C stops an answer\n");
    std::string line;
    while (true) {
      if (interactive) tell(paint.bold("> "));
      if (!std::getline(std::cin, line)) break;
      if (!line.empty() && line.back() == '\r') line.pop_back();
      if (line.empty()) continue;
      if (line == "/exit" || line == "/quit") return 0;
      if (line == "/clear") {
        clear();
        tell("forgotten\n");
      } else if (line == "/stats") {
        tell(last_report_.empty() ? "nothing was said yet\n" : last_report_);
      } else if (line[0] == '/') {
        complain("there are /clear, /stats and /exit; to begin a message with a slash, put a space first");
      } else if (const int code = answer(line); code >= 0) {
        return code;
      }
    }
    if (interactive) tell("\n");
    return 0;
  }

 private:
  void clear() {
    turns_.clear();
    if (flags_.system) turns_.push_back({"system", *flags_.system});
  }

  // One turn; an exit code to leave with, or -1 to go on.
  int answer(const std::string& line) {
    if (const auto at = first_invalid_utf8(line)) {
      complain(fmt::format("not UTF-8 text: byte {} begins no character", *at));
      return -1;
    }
    // The whole history every time: the turns before it are tokenised alike, so the model reads what it said.
    turns_.push_back({"user", line});
    auto ids = form_.prompt(turns_);
    if (!ids.ok()) return forget_turn(ids.error());
    request_.prompt = std::move(*ids);
    TokenPrinter printer(true, Paint{color_wanted(flags_.color, stdout_is_terminal())});
    const InterruptScope interrupts;
    request_.cache_prompt = true;  // a turn prefills what is new in the conversation
    auto generation = engine_.generate(
        request_,
        [&](const TokenEvent& event) {
          progress_.clear();
          return printer.take(event);
        },
        interrupts.flag());
    progress_.clear();
    printer.finish(generation.ok() ? generation->text : "");
    if (!generation.ok()) return forget_turn(generation.error());
    if (printer.output_lost() || !write_stdout("\n")) {
      const Status status = output_error();
      return status.ok() ? 0 : fail(status.error());
    }
    if (interrupts.exit_code() == 143) return 143;  // Ctrl-C stops the answer, a termination request the program
    turns_.push_back({"assistant", generation->text});
    const Report report{*generation, generation->text, engine_.model_name(), kv_bytes_per_entry(engine_)};
    last_report_ = report_text(report, Paint{color_wanted(flags_.color, stderr_is_terminal())});
    if (!generation->warning.empty()) complain(generation->warning);
    if (!generation->lossless) complain(lossless_text(*generation) + "; plain decoding may say something else");
    if (flags_.stats) tell(last_report_);
    return -1;
  }

  // A turn that cannot be answered (too long, most likely) leaves the conversation as it was.
  int forget_turn(const Error& error) {
    fail(error);
    turns_.pop_back();
    if (stdin_is_terminal()) return -1;  // a person tries again, a script wants to know
    return error.kind == Error::Kind::Usage ? 2 : 1;
  }

  Engine& engine_;
  ChatForm form_;
  Request request_;
  const ChatFlags& flags_;
  ProgressLine& progress_;
  std::vector<ChatTurn> turns_;
  std::string last_report_;
};

Result<int> chat(const ChatFlags& flags, const FlagSet& set) {
  std::vector<std::string> notes;
  HUNCH_TRY(auto speculation, resolve_speculation(flags.speculation, &notes));
  HUNCH_TRY(auto options, engine_options(flags.model, &flags.speculation));
  options.max_num_seqs = 1;
  for (const std::string& remark : notes) note(remark);
  note_ignored(set);
  ProgressLine progress;
  HUNCH_TRY(auto engine, load_engine(options, progress));
  HUNCH_TRY(auto form, ChatForm::make(*engine, flags.chat_template));
  return Chat(*engine, std::move(form), request_of(flags.sampling, speculation), flags, progress).talk();
}

}

Result<int> chat_command(Arguments arguments) {
  ChatFlags flags;
  FlagSet set("hunch chat [flags]",
      "A conversation with history, in the model's own chat form. /clear forgets, /stats shows figures, /exit leaves.");
  set.group("Chat");
  set.text({"--system", "-sys", "--system-prompt"}, "TEXT", "the system turn", flags.system);
  add_chat_template_flags(set, flags.chat_template);
  add_generating_flags(set, flags);
  set.group("Output");
  set.toggle({"--stats"}, "statistics on stderr after every answer", flags.stats);
  add_color_flag(set, flags.color);
  add_foreign_flags(set);
  if (const auto ended = parsed(set, arguments, true)) return *ended;
  return chat(flags, set);
}

}
