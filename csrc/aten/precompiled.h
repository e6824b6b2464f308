// What most files of this folder include of torch; to parse it takes half of the time of a file.
//
// setup.py compiles it once, and a file that includes it before anything else gets the result.
// Headers do not include it, and nothing relies on it: everybody names what they use.
#ifndef HOLOGRAM_ATEN_PRECOMPILED_H  // not a pragma: it is compiled as a main file
#define HOLOGRAM_ATEN_PRECOMPILED_H

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <span>

#endif  // HOLOGRAM_ATEN_PRECOMPILED_H
