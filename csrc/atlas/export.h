// What libraries outside the package may link against: those of backends.
#pragma once

#define HOLOGRAM_EXPORT __attribute__((visibility("default")))
