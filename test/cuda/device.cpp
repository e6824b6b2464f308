#include "device.h"

#include <cstdlib>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "../sim/environment.h"
#include "../sim/memory.h"

namespace simulated_cuda {

using namespace hologram::cuda;

namespace {

constexpr size_t kPage = size_t{2} << 20;

size_t rounded(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

// HOLOGRAM_TEST_CUDA_OFFSET: so far behind a page memory begins, as a driver might have it.
size_t offset() {
  static const auto bytes = static_cast<size_t>(sim::number("HOLOGRAM_TEST_CUDA_OFFSET", 0));
  return bytes;
}

bool is_refused() {
  static const std::set<int> refused = sim::numbers("HOLOGRAM_TEST_CUDA_NO_MEMORY");
  static std::atomic<int> count{0};
  return refused.contains(++count);
}

}  // namespace

Device::Device(int ordinal)
    : ordinal(ordinal),
      total_(static_cast<size_t>(sim::number("HOLOGRAM_TEST_CUDA_MEGABYTES", 8192)) << 20) {
  streams_.emplace(nullptr, make_stream());
}

Status Device::allocate(Address* memory, size_t bytes) {
  if (bytes == 0) return kInvalidValue;
  if (is_refused()) return kOutOfMemory;
  const std::lock_guard guard(mutex_);
  const size_t wanted = rounded(bytes + offset());
  if (wanted > total_ - taken_) return kOutOfMemory;
  void* const data = sim::Memory::instance().allocate(wanted);
  if (data == nullptr) return kOutOfMemory;
  taken_ += wanted;
  *memory = reinterpret_cast<Address>(data) + offset();
  allocations_.emplace(*memory, bytes);
  return kSuccess;
}

Status Device::free(Address memory) {
  if (memory == 0) return kSuccess;
  wait_for_all();
  const std::lock_guard guard(mutex_);
  const auto found = allocations_.find(memory);
  if (found == allocations_.end()) return kInvalidValue;
  const size_t size = rounded(found->second + offset());
  sim::Memory::instance().free(reinterpret_cast<void*>(memory - offset()), size);
  copies_.erase(copies_.lower_bound(memory), copies_.lower_bound(memory + size));
  taken_ -= size;
  allocations_.erase(found);
  return kSuccess;
}

size_t Device::free_memory() {
  const std::lock_guard guard(mutex_);
  return total_ - taken_;
}

bool Device::holds(Address start, size_t bytes) {
  const std::lock_guard guard(mutex_);
  const auto behind = allocations_.upper_bound(start);
  if (behind == allocations_.begin()) return false;
  const auto& [first, size] = *std::prev(behind);
  return start + bytes <= first + size;
}

void Device::note_copy(Address start, size_t bytes) {
  const std::lock_guard guard(mutex_);
  // Those that it overwrites are gone.
  auto first = copies_.upper_bound(start);
  if (first != copies_.begin() && std::prev(first)->first + std::prev(first)->second > start) {
    --first;
  }
  while (first != copies_.end() && first->first < start + bytes) first = copies_.erase(first);
  copies_[start] = bytes;
}

size_t Device::copied(Address start) {
  const std::lock_guard guard(mutex_);
  const auto behind = copies_.upper_bound(start);
  if (behind == copies_.begin()) return 0;
  const auto& [first, bytes] = *std::prev(behind);
  return start < first + bytes ? first + bytes - start : 0;
}

bool Device::enable(int peer) {
  const std::lock_guard guard(mutex_);
  return peers_.insert(peer).second;
}

std::shared_ptr<Stream> Device::find(hologram::cuda::Stream handle) {
  const std::lock_guard guard(mutex_);
  const auto found = streams_.find(handle);
  return found != streams_.end() ? found->second : nullptr;
}

std::shared_ptr<Stream> Device::make_stream() {
  const int seed =
      sim::number("HOLOGRAM_TEST_CUDA_SEED", 1) + ordinal + device_count() * streams_made_++;
  return std::make_shared<Stream>(static_cast<uint64_t>(seed));
}

hologram::cuda::Stream Device::create_stream() {
  const std::lock_guard guard(mutex_);
  const auto handle = new_handle<hologram::cuda::Stream>();
  streams_.emplace(handle, make_stream());
  return handle;
}

Status Device::destroy_stream(hologram::cuda::Stream handle) {
  std::shared_ptr<Stream> stream;  // does what is left
  const std::lock_guard guard(mutex_);
  const auto found = streams_.find(handle);
  if (handle == nullptr || found == streams_.end()) return kInvalidHandle;
  stream = std::move(found->second);
  streams_.erase(found);
  return kSuccess;
}

void Device::push(Stream& stream, sim::LateThread::Task task) {
  stream.thread.push([this, task = std::move(task)] {
    if (lost() == kSuccess) task();
  });
}

void Device::wait_for_all() {
  std::vector<std::shared_ptr<Stream>> all;
  {
    const std::lock_guard guard(mutex_);
    for (const auto& [handle, stream] : streams_) all.push_back(stream);
  }
  for (const auto& stream : all) stream->thread.wait(stream->thread.last());
}

int device_count() {
  static const int count = sim::number("HOLOGRAM_TEST_CUDA_DEVICES", 2);
  return count;
}

Device* device(int ordinal) {
  // Outlive what uses them at the end of the process.
  static const auto& all = *new std::vector<Device*>([] {
    std::vector<Device*> list;
    for (int i = 0; i < device_count(); ++i) list.push_back(new Device(i));
    return list;
  }());
  if (ordinal < 0 || ordinal >= device_count()) return nullptr;
  return all[static_cast<size_t>(ordinal)];
}

std::vector<Context>& contexts() {
  static thread_local std::vector<Context> stack;
  return stack;
}

Device* current_device() {
  return contexts().empty() ? nullptr : static_cast<Device*>(contexts().back());
}

}  // namespace simulated_cuda
