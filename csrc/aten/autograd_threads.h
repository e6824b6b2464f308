// Which threads autograd runs on.
#pragma once

#include <pybind11/pybind11.h>

namespace hologram::aten {

// Has backward passes over a device's tensors run on the thread that starts them, as they do on the
// CPU, where the devices compute on the processor. torch would hand them to a thread per device,
// which costs two switches between threads for each and gives nothing: recording is quick, the
// flush uses torch's threads, and OpenMP would keep a second team of those for the device's thread.
//
// That is torch's own switch, set_multithreading_enabled(False), turned for the length of such a
// pass; graphs of other devices, and what the switch says outside a pass, stay as they were.
// Whether a graph is of a device is read off its outputs and the nodes next to them. Passes that do
// not start in Python (torch::autograd::backward) are left to torch.
//
// exchange_device_threads(on) says that the calling thread has turned the switch on itself, which
// brings the device threads back; it returns what was said before.
void run_backward_on_calling_thread(pybind11::module_& m);

// Ends autograd's device threads and waits until they are gone. A thread that is still giving back
// its Python state when the interpreter has gone aborts the process. Call without the GIL, as late
// as Python still runs; a backward pass after it starts no new threads.
void stop_autograd_threads();

}  // namespace hologram::aten
