// HUNCH_CHECK(cond): a bug, not an input error. Prints the place and aborts. Always on; HUNCH_DCHECK only in debug builds.
// What a user, a file or the network can cause is never a check: it is a Result (base/result.h).
#pragma once

#include <cstdio>
#include <cstdlib>

namespace hunch {

[[noreturn]] inline void check_failed(const char* file, int line, const char* what) {
  std::fprintf(stderr, "hunch: internal error: %s:%d: check failed: %s\n", file, line, what);
  std::abort();
}

}

#define HUNCH_CHECK(cond) \
  do { \
    if (!(cond)) [[unlikely]] \
      ::hunch::check_failed(__FILE__, __LINE__, #cond); \
  } while (0)

#ifdef NDEBUG
#define HUNCH_DCHECK(cond) ((void)0)
#else
#define HUNCH_DCHECK(cond) HUNCH_CHECK(cond)
#endif
