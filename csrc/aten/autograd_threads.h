// Which threads autograd runs on.
#pragma once

namespace hologram::aten {

// Has backward passes that this thread starts run on it from now on, as they do on the CPU, where
// the devices compute on the processor. torch would hand them to a thread per device, which costs
// two switches between threads for each and gives nothing: recording is quick, the flush uses
// torch's threads, and OpenMP would keep a second team of those for the device's thread. Called
// when a thread first makes device memory, so that a process which uses other devices only keeps
// torch's ways. torch.autograd.set_multithreading_enabled(True) brings the device threads back.
void run_backward_on_this_thread();

// Ends autograd's device threads and waits until they are gone. A thread that is still giving back
// its Python state when the interpreter has gone aborts the process. Call without the GIL, as late
// as Python still runs; a backward pass after it starts no new threads.
void stop_autograd_threads();

}  // namespace hologram::aten
