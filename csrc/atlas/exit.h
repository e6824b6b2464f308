// What is to be done before the process ends. A thread has to be gone before the objects of the
// libraries that it uses are; of a library that is opened late these are ended first, before what
// std::atexit had by then is done.
#pragma once

#include "atlas/export.h"

namespace hologram {

// Registers a task, which may be done more than once and must not throw. Thread-safe.
HOLOGRAM_EXPORT void before_exit(void (*task)());

// Does all of them: called where Python begins to exit, and by std::atexit, for a process that ends
// in another way. Not in a forked child, which has none of the threads.
void run_before_exit() noexcept;

}  // namespace hologram
