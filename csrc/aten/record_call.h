// Calls of torch's CPU kernels as instructions (atlas/call.h): a tensor of one is made when it
// runs, over the addresses that its program has.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <span>
#include <utility>

#include "aten/report.h"
#include "atlas/call.h"

namespace hologram::aten {

// What a kernel is told of a tensor beside its address.
struct TensorShape {
  explicit TensorShape(const at::Tensor& tensor);
  at::Tensor over(void* memory) const;  // a CPU tensor, for as long as the memory lives

  c10::SmallVector<int64_t, 4> sizes, strides;
  caffe2::TypeMeta dtype;
};

// Calls a kernel with CPU tensors, in the order of record_call()'s, as if nobody had asked for
// gradients, autocast or a mode.
class TensorCall : public Call {
 public:
  void run(std::span<void* const> memory) override;
  void add(const at::Tensor& tensor) { shapes_.emplace_back(tensor); }

 protected:
  virtual void compute(at::ArrayRef<at::Tensor> tensors) = 0;

 private:
  c10::SmallVector<TensorShape, 4> shapes_;
};
template <class Kernel>
class KernelCall final : public TensorCall {
 public:
  explicit KernelCall(Kernel kernel) : kernel_(std::move(kernel)) {}

 private:
  void compute(at::ArrayRef<at::Tensor> tensors) override { kernel_(tensors); }
  Kernel kernel_;
};

// Whether a device's programs may have calls of torch's CPU kernels.
bool takes_calls(c10::DeviceIndex device);

// Whether a call can read a tensor: with elements, of the device, in memory that can be recorded.
bool is_recordable(const at::Tensor& tensor, c10::DeviceIndex device);

// Records a call that reads tensors which are recordable, and writes one which is fresh.
void record_call(const char* name, at::ArrayRef<const at::Tensor*> reads, const at::Tensor& result,
                 std::shared_ptr<TensorCall> call);
template <class Kernel>
void record_kernel(const char* name, at::ArrayRef<const at::Tensor*> reads,
                   const at::Tensor& result, Kernel kernel) {
  record_call(name, reads, result, std::make_shared<KernelCall<Kernel>>(std::move(kernel)));
}

}  // namespace hologram::aten
