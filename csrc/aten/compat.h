// Every difference between the supported torch versions (2.11 to 2.15) lives in this header.
#pragma once

#include <c10/core/TensorImpl.h>
#include <torch/version.h>

#include <memory>
#include <utility>

// HOLOGRAM_ANY_TORCH is for finding out what a newer torch would need; see docs/versions.md.
#if !defined(HOLOGRAM_ANY_TORCH) && \
    (TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR < 11 || TORCH_VERSION_MINOR > 15)
#error "torch_hologram supports torch 2.11 to 2.15"
#endif

#define HOLOGRAM_STRINGIFY_(x) #x
#define HOLOGRAM_STRINGIFY(x) HOLOGRAM_STRINGIFY_(x)
// The minor version an extension binary is tied to: StorageImpl, DeviceStats and the guard's vtable
// differ between minors, so one binary serves exactly one of them.
#define HOLOGRAM_TORCH_MINOR \
  HOLOGRAM_STRINGIFY(TORCH_VERSION_MAJOR) "." HOLOGRAM_STRINGIFY(TORCH_VERSION_MINOR)

// 2.12 added DeviceGuardImplInterface::isStreamCapturing, whose default throws in 2.12.
#if TORCH_VERSION_MINOR >= 12
#define HOLOGRAM_GUARD_HAS_STREAM_CAPTURE 1
#else
#define HOLOGRAM_GUARD_HAS_STREAM_CAPTURE 0
#endif

// 2.12 added a place for a device's profiler
// (torch/csrc/profiler/standalone/privateuse1_profiler.h).
#if TORCH_VERSION_MINOR >= 12
#define HOLOGRAM_HAS_ACTIVITIES 1
#else
#define HOLOGRAM_HAS_ACTIVITIES 0
#endif

// Before 2.13 compiled graphs record an event by a method of torch.Stream, which refuses events
// that are of a subclass of torch.Event.
#define HOLOGRAM_GRAPHS_TAKE_EVENTS (TORCH_VERSION_MINOR >= 13)

// From 2.14 on the derivative of clamp is shared out where an operand is equal to a bound: nothing
// to it where the bounds are numbers, half of it where they are tensors.
#define HOLOGRAM_CLAMP_SHARES_TIES (TORCH_VERSION_MINOR >= 14)

namespace hologram::aten {

// Named tensors were removed in 2.13.
inline bool has_names([[maybe_unused]] const c10::TensorImpl* tensor) {
#if TORCH_VERSION_MINOR >= 13
  return false;
#else
  return tensor->has_named_tensor_meta();
#endif
}

// Nodes of autograd's graph are held by intrusive_ptr from 2.13 on, by shared_ptr before.
#if TORCH_VERSION_MINOR >= 13
template <class Node>
using NodePointer = c10::intrusive_ptr<Node>;
template <class Node, class... Args>
NodePointer<Node> make_node(Args&&... args) {
  return c10::make_intrusive<Node>(std::forward<Args>(args)...);
}
#else
template <class Node>
using NodePointer = std::shared_ptr<Node>;
template <class Node, class... Args>
NodePointer<Node> make_node(Args&&... args) {
  return NodePointer<Node>(new Node(std::forward<Args>(args)...),
                           [](auto* node) { deleteNode(node); });  // torch::autograd's
}
#endif

}  // namespace hologram::aten
