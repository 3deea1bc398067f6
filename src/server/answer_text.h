// The bytes of an answer's head. Used by Connection.
#pragma once

#include <ctime>

#include "server/http.h"

namespace hunch {

enum class Framing { Length, Chunked, UntilClose };

// With the empty line. `length`: of the body, for Framing::Length.
std::string answer_head(const HttpReply& reply, const Headers& extra, Framing framing, size_t length, bool keep_alive,
    std::time_t now = std::time(nullptr));

}
