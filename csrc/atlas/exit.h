// What is to be done before the process ends: threads that use a library have to be gone before its
// objects are, and which of those there are is not known when it is opened.
#pragma once

#include "atlas/export.h"

namespace hologram {

// Registers a task, which may be done more than once and must not throw. Thread-safe.
HOLOGRAM_EXPORT void before_exit(void (*task)());

// Does all of them, where Python begins to exit. A process that ends in another way does them among
// what std::atexit has: after libraries that were opened since the first was registered. Not in a
// forked child, which has none of the threads.
void run_before_exit() noexcept;

}  // namespace hologram
