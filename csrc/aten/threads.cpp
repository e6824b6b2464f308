#include "aten/precompiled.h"

#include "aten/threads.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>

#include <algorithm>

#include "cpu/queue.h"

namespace hologram::aten {
namespace {

// torch shows its pool in headers only, as code that has to be compiled against the same OpenMP
// library. A TensorIterator's loop is compiled into torch, so it runs on torch's threads whatever
// they are made of; this one loops over nothing but the indices of a dummy.
class TorchThreads final : public cpu::Parallel {
 public:
  TorchThreads()
      : iterator_(at::TensorIteratorConfig()
                      .set_check_mem_overlap(false)
                      .check_all_same_dtype(false)
                      .resize_outputs(false)
                      .add_owned_output(at::detail::empty_cpu({kMost}, at::kByte))
                      .build()) {}

  // Inside a parallel region of torch there is the calling thread only.
  int threads() const override {
    return at::in_parallel_region() ? 1 : std::min<int>(at::get_num_threads(), kMost);
  }

  void run(int threads, Body body, void* context) override {
    // Each thread gets one range of at least this many indices, of a byte each.
    const int64_t grain = (kMost + threads - 1) / threads;
    const auto* const first = static_cast<const char*>(iterator_.data_ptr(0));
    iterator_.for_each([&](char** data, const int64_t*, int64_t,
                           int64_t) { body(context, static_cast<int>((*data - first) / grain)); },
                       grain);
  }

 private:
  static constexpr int64_t kMost = 1024;
  at::TensorIterator iterator_;  // looping does not change it
};

}  // namespace

void use_torch_threads() {
  cpu::set_parallel(*new TorchThreads());  // outlives every flush
}

}  // namespace hologram::aten
