// What fork() means to the core: the parent goes on, the child must not use the devices.
#pragma once

#include "atlas/export.h"

namespace hologram {

// Registers the fork handlers (once). The prepare handler takes every lock of the core in order, so
// that the child's copy is consistent and freeing inherited memory there stays safe.
void install_fork_guard();

// The devices are in use from now on: installs the guard, and children forked from here on are
// marked.
void mark_initialized();
bool is_initialized() noexcept;

// Whether this process was forked from one in which is_initialized() held.
HOLOGRAM_EXPORT bool in_forked_child() noexcept;

}  // namespace hologram
