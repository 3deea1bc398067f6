// libFuzzer target: the body of an HTTP request from arbitrary bytes. What is refused says so in a line of JSON; what is taken
// keeps every bound.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "api/body.h"
#include "api/error.h"
#include "api/speculation_settings.h"
#include "base/check.h"
#include "engine/sampling_options.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hunch;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  for (const BodyKind kind : {BodyKind::Completions, BodyKind::Chat}) {
    Body body;
    BodyFault fault;
    if (const Status status = read_body(input, kind, body, fault); !status.ok()) {
      ApiError error = api_error(status.error());
      HUNCH_CHECK(error.status == 400 && !error.message.empty());
      error.param = fault.param, error.code = fault.code;
      HUNCH_CHECK(error_body(error).find('\n') == std::string::npos);
      continue;
    }
    HUNCH_CHECK(body.input == (kind == BodyKind::Chat ? Body::Input::Chat : Body::Input::Prompts));
    HUNCH_CHECK(body.samples >= 1 && body.samples * int(std::max<size_t>(1, body.prompts.size())) <= kMaxChoices);
    HUNCH_CHECK(body.request.stop.size() <= kMaxStopTexts && body.request.stop_ids.size() <= kMaxIdList);
    HUNCH_CHECK(body.request.sampling.logit_bias.size() <= kMaxLogitBias && body.request.cache_salt.size() <= kMaxSaltBytes);
    HUNCH_CHECK(body.request.sampling.logprobs <= kMaxLogprobs && body.unknown_keys <= int(kMaxBodyKeys));
    if (!body.speculation.empty()) (void)parse_speculative_config(body.speculation);
  }
  return 0;
}
