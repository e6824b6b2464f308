// What the backend uses of Metal. One implementation, on Apple's metal-cpp (runtime.cpp): nothing
// else of the backend sees its headers. On Linux it is linked with the runtime of test/metal.
//
// Objects are Metal's own, which count their references: a copy is the same object. Every function
// has an autorelease pool of its own. Functions that make something throw Error with what Metal
// says. Thread-safe but for Commands, of which one thread at a time calls functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

namespace hologram::metal {

class Object {
 public:
  Object() = default;
  // Takes over a reference.
  explicit Object(void* object) noexcept : object_(object) {}
  Object(const Object& other) noexcept;
  Object(Object&& other) noexcept : object_(other.object_) { other.object_ = nullptr; }
  Object& operator=(Object other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Object();

  explicit operator bool() const noexcept { return object_ != nullptr; }
  void* get() const noexcept { return object_; }

 private:
  void* object_ = nullptr;
};

class Buffer : public Object {
 public:
  using Object::Object;
};

class Pipeline : public Object {
 public:
  using Object::Object;
  unsigned most_threads() const noexcept;  // of a threadgroup
};

class Library : public Object {
 public:
  using Object::Object;
  // Of a kernel of the library; a null one where there is none of this name. Throws Error where its
  // simdgroups have not 32 threads, too.
  Pipeline pipeline(const std::string& kernel) const;
};

// A number that queues and the host raise, and wait for. Signals have to be in rising order: Metal
// sets what it is told to.
class Event : public Object {
 public:
  using Object::Object;
  uint64_t value() const noexcept;
  void set_value(uint64_t value) noexcept;
  // Whether the value was reached in time.
  bool wait(uint64_t value, uint64_t milliseconds) const noexcept;
};

// How a command buffer ended.
struct Finished {
  std::string error;          // what went wrong, or nothing
  double begin = 0, end = 0;  // seconds of the GPU's clock
};

// A command buffer that is written. Not committed, it does nothing.
class Commands {
 public:
  // Buffers from argument 0 on, none of them null, and bytes as the argument after them: at most 31
  // in all, and 4096 bytes.
  struct Place {
    const Buffer* buffer;
    size_t offset;
  };
  explicit Commands(void* buffer) noexcept : buffer_(buffer) {}
  Commands(Commands&& other) noexcept = default;
  Commands& operator=(Commands&& other) noexcept;
  ~Commands();

  // Kernels run one after the other, in order. `blocks` and `threads` are in one dimension; threads
  // are whole simdgroups, at most Pipeline::most_threads(). Buffers have to live until the kernel
  // has ended.
  void dispatch(const Pipeline& pipeline, std::span<const Place> places,
                std::span<const std::byte> bytes, uint32_t blocks, uint32_t threads);
  // What follows starts when the event has the value, and it has the value when what came before
  // has ended.
  void wait_for(const Event& event, uint64_t value);
  void signal(const Event& event, uint64_t value);
  // Starts it, behind those that were committed before. `finished` is called once, by a thread of
  // Metal's; where there is an error events were not signalled.
  void commit(std::function<void(const Finished&)> finished);

 private:
  void end_encoding() noexcept;

  Object buffer_, encoder_;  // none between kernels and signals
};

class CommandQueue : public Object {
 public:
  using Object::Object;
  // Waits where 64 of the queue's have not ended, which those that are not committed never do.
  Commands commands() const;
};

struct DeviceInfo {
  std::string name;
  size_t memory = 0;               // bytes that it works well with
  size_t most_buffer_bytes = 0;    // of one
  size_t shared_memory_bytes = 0;  // of a threadgroup
};

class Device : public Object {
 public:
  using Object::Object;
  // Throws Error that says what is missing: a device, one of Apple's (M1 or later), macOS 14.
  static Device system_default();

  DeviceInfo info() const;
  size_t allocated_bytes() const noexcept;  // of all buffers of the process
  // Memory of the host for as long as the buffer lives, whole pages (page_size()) of no other
  // buffer: kernels wait for others by the buffers that they use. Command buffers keep what they
  // use a little longer than it takes to run: `give_back`, where it is not null, is called with the
  // memory and its bytes when nobody has the buffer any more. Null, with nothing called, where the
  // device has no more, or not so much in one.
  Buffer wrap(void* memory, size_t bytes, void (*give_back)(void*, size_t) = nullptr) const;
  static size_t page_size() noexcept;
  // Compiles text in the Metal shading language 3.1, without fast math. Throws Error with the
  // compiler's words, and the line that it is about.
  Library compile(const std::string& text) const;
  CommandQueue make_queue() const;
  Event make_event() const;
};

}  // namespace hologram::metal
