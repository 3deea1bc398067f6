#include "server/answer_text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <iterator>

namespace hunch {

std::string answer_head(
    const HttpReply& reply, const Headers& extra, Framing framing, size_t length, bool keep_alive, std::time_t now) {
  std::string out;
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "HTTP/1.1 {} {}\r\nServer: hunch\r\nDate: {:%a, %d %b %Y %H:%M:%S} GMT\r\n", reply.status,
      reason_phrase(reply.status), fmt::gmtime(now));
  if (reply.status != 204) {
    fmt::format_to(to, "Content-Type: {}\r\n", reply.type);
    if (framing == Framing::Length) fmt::format_to(to, "Content-Length: {}\r\n", length);
    if (framing == Framing::Chunked) out += "Transfer-Encoding: chunked\r\n";
  }
  out += keep_alive ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  for (const Headers* headers : {&reply.headers, &extra})
    for (const auto& [name, value] : *headers) fmt::format_to(to, "{}: {}\r\n", name, value);
  out += "\r\n";
  return out;
}

}
