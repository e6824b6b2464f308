// What torch's kernels get for hologram tensors: tensors of the device's target (delegate_target.h)
// over the same memory, which are CPU tensors where the host can touch it; over a copy elsewhere.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/MaybeOwned.h>
#include <c10/util/SmallVector.h>

#include <vector>

#include "aten/block.h"
#include "aten/delegate_target.h"
#include "aten/transfer.h"

namespace hologram::aten {

// A CPU tensor over the memory of a hologram tensor: same sizes, strides, offset, dtype, conjugate
// and negative bits; version counter and autograd state of its own. Strided, quantized, nested,
// sparse COO and compressed sparse tensors; others throw NotImplementedError. For somebody outside,
// who may use it as long as he likes: from now on instructions on the memory run at once, those too
// that other threads are recording at this moment. Throws RuntimeError where the host cannot touch
// the memory.
at::Tensor shared_alias(const at::Tensor& tensor);

// Likewise for as long as somebody works on the memory whom the caller waits for: what other
// threads record meanwhile is not run at once. Only where the host can touch the memory.
at::Tensor alias_on_host(const at::Tensor& tensor);

// Like shared_alias() a tensor of the vendor's device, where its kernels work on the memory in the
// order of the current stream (DelegateTarget::in_stream_order): nobody waits. Throws RuntimeError
// elsewhere.
at::Tensor vendor_alias(const at::Tensor& tensor);

// A CPU tensor with the values of a hologram tensor, for reading: its memory where the host can
// touch that, else a copy. No call is counted.
at::Tensor values_on_cpu(const at::Tensor& tensor);

// A hologram tensor over the memory of a CPU tensor, which may live on. Throws RuntimeError where
// the device's memory is not the host's.
at::Tensor hologram_alias(const at::Tensor& cpu, c10::DeviceIndex device);

// Likewise over that of a tensor of the vendor's device, whose kernels work in the order of the
// current stream. Throws RuntimeError where it is on another one.
at::Tensor alias_of_vendor(const at::Tensor& theirs, c10::DeviceIndex device);

// The arguments of one delegated call and the way back for its results. An alias has sizes,
// strides, offset, dtype, conjugate and negative bits of its tensor, and a version counter and
// autograd state of its own.
//
// Of memory that no kernel of torch's can touch, an alias has an image: a CPU storage of the same
// size with the bytes between which the elements lie, one for all aliases of a storage.
class AliasFrame {
 public:
  AliasFrame() = default;
  AliasFrame(const AliasFrame&) = delete;
  AliasFrame& operator=(const AliasFrame&) = delete;
  ~AliasFrame() {
    if (C10_UNLIKELY(!loans_.empty())) end_loans();
  }

  // For a CPU kernel where the device's target has none. Before the first argument.
  void use_images() { images_only_ = true; }
  // In page-locked memory, where there is enough of it, so that a device copies by itself.
  // Likewise.
  void pin_images() { images_pinned_ = true; }
  // Whose kernels have the aliases of a device's tensors, and make results that are the device's.
  const DelegateTarget& target(c10::DeviceIndex device) const {
    return C10_UNLIKELY(images_only_) ? copying_target() : target_of(device);
  }

  // The alias of a hologram argument, one per tensor: kernels compare operands by identity.
  at::Tensor argument(at::Tensor tensor, bool written = false);

  // The same with no reference taken: the caller keeps both tensors for as long as the frame.
  void borrow(const at::Tensor& tensor, bool written, at::Tensor& alias);

  // Copies what kernels may change of a written argument besides its bytes: size, strides, offset,
  // reallocated storage, conjugate and negative bits, sparse members. Of an image the bytes, too.
  void write_back();

  // Tells autograd that the written arguments have changed.
  void bump_versions();

  // A result of the kernel as a hologram tensor: the argument itself where the kernel returned
  // that, a view where it shares an argument's storage, otherwise the fresh tensor relabelled in
  // place, or copied to the device. Undefined stays undefined, and what is not on the target's
  // device where it is: kernels for CUDA have results on the CPU.
  at::Tensor result(at::Tensor theirs, c10::DeviceIndex device);

 private:
  struct Argument {
    c10::MaybeOwned<at::Tensor> tensor;
    c10::MaybeOwned<at::Tensor> alias;
    bool written;
  };
  struct Mapped {
    const c10::StorageImpl* theirs;
    c10::Storage hologram;
  };
  struct Image {
    c10::Storage hologram;
    c10::intrusive_ptr<c10::StorageImpl> cpu;
    const void* bytes;  // of `cpu`, which a kernel may reallocate
    Extent held;        // that has been copied from the device
    Extent written;     // that a kernel may have changed, within `held`
    Extent after;       // likewise, of arguments that it has given another size
  };
  const at::Tensor* known_alias(const at::Tensor& tensor, bool written);
  at::Tensor new_alias(const at::Tensor& tensor, bool written);
  c10::Storage alias_storage(const at::Tensor& tensor, bool written);
  c10::Storage image_storage(const at::Tensor& tensor, bool written);
  c10::intrusive_ptr<c10::StorageImpl> new_image(const c10::StorageImpl* storage) const;
  void map_members(const at::Tensor& tensor);
  void write_image(Image& image);
  const Loan& lend(c10::DeviceIndex device);
  void take_back();
  void end_loans() noexcept;
  void note_launched(const c10::Storage& storage);
  const c10::Storage& storage_for(const c10::Storage& theirs, c10::DeviceIndex device);
  at::Tensor relabelled(at::Tensor theirs, c10::DeviceIndex device);

  c10::SmallVector<Argument, 4> arguments_;
  c10::SmallVector<Mapped, 2> mapped_;  // storages of results and of sparse arguments' members
  std::vector<Image> images_;
  c10::SmallVector<Loan, 1> loans_;  // one for each device whose queue is lent
  bool images_only_ = false, images_pinned_ = false;
};

}  // namespace hologram::aten
