// libFuzzer target: a line of a batch file from arbitrary bytes, and the answers that such a line gets.

#include "api/batch_answer.h"
#include "api/batch_line.h"
#include "api/speculation_settings.h"
#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  hunch::BatchLine line;
  const hunch::Status status = hunch::parse_batch_line(input, line);
  if (!status.ok()) {
    const std::string answer = hunch::batch_error(line, line.id, status.error(), 1);
    HUNCH_CHECK(answer.starts_with("{\"id\":") && answer.find('\n') == answer.npos);
    return 0;
  }
  HUNCH_CHECK(!line.id.empty() && line.body.samples >= 1 && line.body.input != hunch::Body::Input::None);
  if (!line.body.speculation.empty()) (void)hunch::parse_speculative_config(line.body.speculation);
  const std::string answer = hunch::batch_answer(line, std::vector<hunch::BatchSample>(1), "m", nullptr);
  HUNCH_CHECK(answer.starts_with("{\"id\":") && answer.find('\n') == answer.npos);
  return 0;
}
