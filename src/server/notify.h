// What systemd wants to know of a service of Type=notify: ready, stopping, alive. Without $NOTIFY_SOCKET nothing is sent.
#pragma once

#include <string_view>

namespace hunch {

// "READY=1", "STOPPING=1", "WATCHDOG=1", "STATUS=...". Failures do not matter to the server and are not told.
void notify_service_manager(std::string_view state);

// Seconds between signs of life that the service manager asks for ($WATCHDOG_USEC); 0: none.
double service_manager_watchdog_seconds();

}
