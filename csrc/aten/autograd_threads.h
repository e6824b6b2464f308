// Autograd's device threads at interpreter exit.
#pragma once

namespace hologram::aten {

// Ends autograd's device threads and waits until they are gone. A thread that is still giving back
// its Python state when the interpreter has gone aborts the process. Call without the GIL, as late
// as Python still runs; a backward pass after it starts no new threads.
void stop_autograd_threads();

}  // namespace hologram::aten
