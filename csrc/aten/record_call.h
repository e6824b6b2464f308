// Calls of torch's CPU kernels as instructions (atlas/call.h): a tensor of one is made when it
// runs, over the addresses that its program has.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "aten/delegate.h"
#include "aten/delegate_target.h"
#include "aten/overloads.h"
#include "aten/past_autograd.h"
#include "aten/report.h"
#include "atlas/call.h"

namespace hologram::aten {

// What a kernel is told of a tensor beside its address.
struct TensorShape {
  explicit TensorShape(const at::Tensor& tensor);
  TensorShape(at::IntArrayRef its_sizes, at::IntArrayRef its_strides, caffe2::TypeMeta type)
      : sizes(its_sizes), strides(its_strides), dtype(type) {}
  // A tensor of the CPU, or of a target's device, for as long as the memory lives.
  at::Tensor over(void* memory) const { return over(memory, c10::kCPU, c10::DispatchKey::CPU); }
  at::Tensor over(void* memory, const DelegateTarget& target) const {
    return over(memory, target.device, target.key);
  }
  at::Tensor over(void* memory, c10::Device device, c10::DispatchKey key) const;

  c10::SmallVector<int64_t, 4> sizes, strides;
  caffe2::TypeMeta dtype;
};

// A call of torch's: as if nobody had asked for gradients, autocast or a mode. `name` is of static
// storage; what torch says of errors follows it.
class KernelCall : public Call {
 public:
  explicit KernelCall(const char* name) : name_(name) {}
  void run(std::span<void* const> memory) final;

 protected:
  // Calls what computes, as above.
  void compute_by(c10::function_ref<void()> function) const;
  virtual void compute(std::span<void* const> memory) = 0;

 private:
  const char* name_;
};

// A function of CPU tensors, in the order of record_call()'s.
template <class Function>
class TensorCall final : public KernelCall {
 public:
  TensorCall(const char* name, Function function, at::ArrayRef<const at::Tensor*> reads,
             const at::Tensor& result)
      : KernelCall(name), function_(std::move(function)) {
    for (const at::Tensor* tensor : reads) shapes_.emplace_back(*tensor);
    shapes_.emplace_back(result);
  }

 private:
  void compute(std::span<void* const> memory) override {
    c10::SmallVector<at::Tensor, 4> tensors;
    for (size_t i = 0; i < shapes_.size(); ++i) tensors.push_back(shapes_[i].over(memory[i]));
    function_(at::ArrayRef<at::Tensor>(tensors));
  }
  Function function_;
  c10::SmallVector<TensorShape, 4> shapes_;
};

// Whether any calls of torch's may become instructions of the device. Those of a vendor's device
// are launched on the stream that is current when the user calls them, but for some
// (learned_call.h).
bool records_calls(c10::DeviceIndex device);

// Whether a tensor has elements, is of the device, and lies in memory whose instructions can be
// recorded.
bool is_plain_operand(const at::Tensor& tensor, c10::DeviceIndex device);
// Whether a recorded call can read it.
bool is_recordable(const at::Tensor& tensor, c10::DeviceIndex device);

// Records a call that reads and writes tensors which are recordable. What has gaps, or is written
// in part, is read, too.
void record_call(const char* name, at::ArrayRef<const at::Tensor*> reads,
                 at::ArrayRef<const at::Tensor*> writes, std::shared_ptr<Call> body);
template <class Function>
void record_kernel(const char* name, at::ArrayRef<const at::Tensor*> reads,
                   const at::Tensor& result, Function function) {
  record_call(name, reads, &result,
              std::make_shared<TensorCall<Function>>(name, std::move(function), reads, result));
}

// Registers a kernel that records calls of torch's, as delegated: for "mm", or "arange.start".
template <class Kernel>
void serve_by_calls(const char* name, Kernel* kernel) {
  note_delegated_kernel(std::string("aten::") + name);
  implement(name, kernel);
}

}  // namespace hologram::aten
