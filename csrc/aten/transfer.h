// Bytes between the host and memory of a device, whether the host can touch it or not.
//
// Where it can, these wait for what is queued on the memory and copy; where not, the device's queue
// copies.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <cstdint>

namespace hologram::aten {

// Whether the host may read and write the memory of a device.
bool is_host_addressable(c10::DeviceIndex device);

// Until when a copy is waited for.
enum class Until : uint8_t {
  done,      // as far as the host's memory is concerned
  enqueued,  // whoever owns the host's memory keeps it, and does not touch it, until it is done
};

// storage[offset, offset + nbytes) to or from the host.
void read_storage(c10::StorageImpl* storage, size_t offset, size_t nbytes, void* host,
                  Until until = Until::done);
void write_storage(c10::StorageImpl* storage, size_t offset, size_t nbytes, const void* host,
                   Until until = Until::done);

// Between storages on devices, which may be different ones, or parts of one that do not overlap.
void copy_storage(c10::StorageImpl* to, size_t to_offset, c10::StorageImpl* from,
                  size_t from_offset, size_t nbytes);

// Elements of a tensor to another one on the same device, where its queue has a kernel for that and
// the two are of one dtype and sizes, strided, and share no memory. False, with nothing enqueued,
// elsewhere, and where the host can touch the memory.
bool copy_strided(const at::Tensor& to, const at::Tensor& from);

// A CPU tensor with the element of a tensor that has one.
at::Tensor element_on_host(const at::Tensor& tensor);

// The bytes of its storage between which a tensor's elements lie; {0, 0} where it has none.
struct Extent {
  size_t begin = 0, end = 0;
  size_t size() const { return end - begin; }
};
Extent extent_of(const at::Tensor& tensor);

}  // namespace hologram::aten
