// Zero-copy translation between hologram tensors and CPU tensors over the same memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/MaybeOwned.h>
#include <c10/util/SmallVector.h>

namespace hologram::aten {

// A CPU tensor over the memory of a hologram tensor: same sizes, strides, offset, dtype, conjugate
// and negative bits; version counter and autograd state of its own. Strided, quantized, nested,
// sparse COO and compressed sparse tensors; others throw NotImplementedError.
at::Tensor cpu_alias(const at::Tensor& tensor);

// The same for somebody outside, who may use it as long as he likes: from now on instructions on
// the memory run at once, those too that other threads are recording at this moment.
at::Tensor shared_alias(const at::Tensor& tensor);

// A hologram tensor over the memory of a CPU tensor, which may live on.
at::Tensor hologram_alias(const at::Tensor& cpu, c10::DeviceIndex device);

// The arguments of one delegated call and the way back for its results.
class AliasFrame {
 public:
  // The alias of a hologram argument, one per tensor: kernels compare operands by identity.
  at::Tensor argument(at::Tensor tensor, bool written = false);

  // The same with no reference taken: the caller keeps both tensors for as long as the frame.
  void borrow(const at::Tensor& tensor, bool written, at::Tensor& alias);

  // Copies what CPU kernels may change of a written argument besides its bytes: size, strides,
  // offset, reallocated storage, conjugate and negative bits, sparse members.
  void write_back();

  // Tells autograd that the written arguments have changed.
  void bump_versions();

  // A result of the CPU kernel as a hologram tensor: the argument itself where the kernel returned
  // that, a view where it shares an argument's storage, otherwise the fresh tensor relabelled in
  // place. Undefined stays undefined.
  at::Tensor result(at::Tensor cpu, c10::DeviceIndex device);

 private:
  struct Argument {
    c10::MaybeOwned<at::Tensor> tensor;
    c10::MaybeOwned<at::Tensor> alias;
    bool written;
  };
  struct Mapped {
    const c10::StorageImpl* cpu;
    c10::Storage hologram;
  };
  const at::Tensor* known_alias(const at::Tensor& tensor, bool written);
  at::Tensor new_alias(const at::Tensor& tensor);
  void map_members(const at::Tensor& tensor);
  const c10::Storage& storage_for(const c10::Storage& cpu, c10::DeviceIndex device);

  c10::SmallVector<Argument, 4> arguments_;
  c10::SmallVector<Mapped, 2> mapped_;  // storages of results and of sparse arguments' members
};

}  // namespace hologram::aten
