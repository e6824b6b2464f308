// What runs: queues, command buffers and encoders of kernels.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "device.h"
#include "event.h"
#include "foundation.h"
#include "library.h"
#include "objc.h"

namespace simulated_metal {

struct Size {
  unsigned long width, height, depth;
};

// An argument that an encoder was given: a buffer, or bytes.
struct Binding {
  Ref<Buffer> buffer;
  size_t offset = 0;
  std::vector<std::byte> bytes;
  bool is_bytes = false;
};
inline constexpr size_t kMostArguments = 31;
using Bindings = std::array<Binding, kMostArguments>;

struct Dispatch {
  Ref<Pipeline> pipeline;
  Bindings bindings;
  uint32_t blocks, threads;
};
struct Wait {
  Ref<SharedEvent> event;
  uint64_t value;
};
struct Signal {
  Ref<SharedEvent> event;
  uint64_t value;
};
using Step = std::variant<Dispatch, Wait, Signal>;

struct Workers;

// Command buffers of a queue run one after the other on a thread of its own, some time later.
class CommandQueue final : public Object {
 public:
  CommandQueue();
  Workers& workers() noexcept { return *workers_; }

  // Of a command buffer, from when it is made until it has ended. Waits while there are as many as
  // Metal allows.
  void take_place();
  void note_commit();
  void leave_place(bool was_committed);

 private:
  void deallocate() override;

  Workers* const workers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int places_ = 0, committed_ = 0;
};

class ComputeEncoder;

class CommandBuffer final : public Object {
 public:
  explicit CommandBuffer(CommandQueue* queue);
  static bool has_any_failed();

  ComputeEncoder* make_encoder(unsigned long dispatch_type);
  void end_encoder(const ComputeEncoder* encoder);
  void add(Step step);
  using Handler = std::function<void(CommandBuffer*)>;
  void add_handler(Handler handler);  // called when it has ended
  void commit();

  enum class Status : unsigned long { not_enqueued = 0, committed = 2, completed = 4, error = 5 };
  Status status();
  Error* error();
  double begin() const noexcept { return begin_; }
  double end() const noexcept { return end_; }
  void check_writable(const char* what);

 private:
  void deallocate() override;
  void run(bool fails);
  void run(const Dispatch& dispatch);
  void end_uses(size_t from);

  Ref<CommandQueue> queue_;
  const ComputeEncoder* encoder_ = nullptr;  // that is open
  std::vector<Step> steps_;
  std::vector<Handler> handlers_;
  std::mutex mutex_;  // of those below
  Status status_ = Status::not_enqueued;
  Ref<Error> error_;
  double begin_ = 0, end_ = 0;  // seconds; written before the status
};

class ComputeEncoder final : public Object {
 public:
  explicit ComputeEncoder(CommandBuffer* commands);
  void set_pipeline(Pipeline* pipeline);
  void set_buffer(Buffer* buffer, size_t offset, size_t index);
  void set_bytes(const void* bytes, size_t count, size_t index);
  void dispatch(Size blocks, Size threads);
  void end();

 private:
  void deallocate() override;
  Binding& at(size_t index);
  void check_open(const char* what);

  Ref<CommandBuffer> commands_;  // none when it has ended
  Ref<Pipeline> pipeline_;
  Bindings bindings_;
};

}  // namespace simulated_metal
