// hunch quantize: any model that opens to one GGUF file in another encoding.
#include "checkpoint/convert.h"
#include "checkpoint/drafter_file.h"
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/interrupt.h"
#include "cli/report.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

Result<DType> output_type(const std::optional<std::string>& given) {
  if (!given) return usage_error("--type is missing: q8_0 (nearly as good as the original), q4_0, q4_k, or f16, bf16, f32");
  std::string name;
  for (char c : *given) name += char(std::tolower(uint8_t(c)));  // llama.cpp writes Q8_0
  static constexpr std::string_view kTypes[] = {"q8_0", "q4_0", "q4_k", "f16", "bf16", "f32"};
  HUNCH_TRY(const std::string type, parse_choice("--type", name, kTypes));
  return *dtype_named(type);
}

int quantize(const std::string& in, const std::string& out, DType type, const std::string& method) {
  ProgressLine progress;
  const InterruptScope interrupts;
  const auto show = [&](const ConvertProgress& p) { progress.show("quantise", int64_t(p.bytes_done), int64_t(p.bytes_total)); };
  const auto report = !method.empty() || is_learned_drafter(in) ? quantise_drafter(in, out, type, method, show, interrupts.flag())
                                                                : quantise_checkpoint(in, out, type, show, interrupts.flag());
  progress.clear();
  if (!report.ok()) {
    const int code = fail(report.error());
    return interrupts.stopped() ? interrupts.exit_code() : code;
  }
  for (const std::string& remark : report.value().notes) note(remark);
  tell(fmt::format(
      "{}: {} of weights became a file of {}\n", out, bytes_text(report.value().bytes_in), bytes_text(report.value().bytes_out)));
  return 0;
}

}

Result<int> quantize_command(Arguments arguments) {
  std::optional<std::string> in, out, type, flag, method;
  FlagSet set("hunch quantize IN OUT.gguf TYPE",
      "Writes a model as one GGUF file that hunch and llama.cpp load, or a learned drafter as one that hunch loads.");
  set.positional("IN", true, "Hugging Face folder or GGUF file, of a model or of a drafter", in);
  set.positional("OUT.gguf", true, "the file to write; it appears when it is complete", out);
  set.positional("TYPE", false, "as --type, llama-quantize's way", type);
  set.group("Flags");
  set.text({"--type"}, "TYPE", "q8_0, q4_0 or q4_k; also f16, bf16, f32", flag);
  set.choice({"--method"}, "NAME", "what drafter IN is, where its config.json does not say: medusa, eagle, eagle3 or mtp",
      {"medusa", "eagle", "eagle3", "mtp"}, method);
  if (const auto ended = parsed(set, arguments)) return *ended;
  if (type && flag && type != flag) return usage_error("{} and --type {} do not agree", excerpt(*type), *flag);
  HUNCH_TRY(const auto dtype, output_type(flag ? flag : type));
  if (!out->ends_with(".gguf"))
    return usage_error("{}: the output is a GGUF file: give it a name that ends in .gguf", excerpt(*out));
  return quantize(*in, *out, dtype, method.value_or(""));
}

}
