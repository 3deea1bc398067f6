#include "api/json_text.h"

namespace hunch {

std::string json_line(const nlohmann::ordered_json& object) {
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

nlohmann::ordered_json bytes_json(std::string_view bytes) {
  auto out = nlohmann::ordered_json::array();
  for (const unsigned char c : bytes) out.push_back(c);
  return out;
}

nlohmann::ordered_json per_second(int64_t n, double milliseconds) {
  if (milliseconds > 0) return double(n) * 1e3 / milliseconds;
  return nullptr;
}

std::string_view finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::Stop: return "stop";
    case FinishReason::Length: return "length";
    case FinishReason::Interrupted: return "interrupted";
  }
  return "?";
}

}
