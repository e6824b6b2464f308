// A queue of a Metal device: command buffers, committed one after the other.
//
// What is enqueued is encoded at once; a command buffer is committed with the program that is
// submitted, when it has enough to do, and when somebody waits for it. Each one raises the queue's
// event to the ticket of what it has last.
//
// The GPU's memory is the host's: what there are no kernels for (groups that compute in f64, memory
// of somebody else's) the CPU's code runs where it lies, when what came before is done.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atlas/queue.h"
#include "gpu/code.h"
#include "metal/attention.h"
#include "metal/kernels.h"
#include "metal/memory.h"
#include "metal/products.h"
#include "metal/runtime.h"

namespace hologram::metal {

class Moment final : public hologram::Moment {
 public:
  // Throws Error where one of them was not taken, because its command buffer failed.
  double milliseconds_since(const hologram::Moment& other) const override;
  void take(const Finished& how) noexcept;

 private:
  // Metal reports the end of a command buffer a little after it has raised the event.
  double seconds() const noexcept;

  static constexpr double kUnknown = -1, kFailed = -2;
  std::atomic<double> seconds_{kUnknown};  // of the GPU's clock
};

class Queue final : public hologram::Queue {
 public:
  Queue(const Device& device, Memory& memory, Kernels& kernels,
        const std::function<void()>& give_back_idle);
  ~Queue() override;

  inline static gpu::RunCounts runs;  // of all queues
  // Command buffers of all queues.
  inline static std::atomic<uint64_t> committed_buffers{0}, failed_buffers{0};

  Ticket submit(const std::shared_ptr<const Compiled>& compiled, Frame& frame) override;
  Ticket copy(void* to, const void* from, size_t bytes, Direction direction) override;
  Ticket fill(void* to, const void* element, size_t element_bytes, size_t count) override;
  std::optional<Ticket> copy_strided(const StridedCopy& copy) override;
  bool copies_strided(const StridedCopy& copy) override;
  std::optional<Ticket> product(const Product& product) override;
  bool computes(const Product& product) override;
  std::optional<Ticket> attention(const Attention& attention) override;
  std::optional<Ticket> attention_backward(const Attention& attention,
                                           const AttentionGradients& gradients) override;
  Ticket record(std::shared_ptr<hologram::Moment> moment) override;
  void wait_for(const Fence& fence) override;
  void lend(void* stream) override;
  Ticket take_back(void* stream) override;
  Ticket last() noexcept override;
  bool done(Ticket ticket) noexcept override;
  bool known_done(Ticket ticket) noexcept override {
    return ticket <= done_.load(std::memory_order_acquire);
  }
  void wait(Ticket ticket) override;

 private:
  struct Submitted {
    Ticket ticket;
    std::shared_ptr<const Compiled> compiled;
  };
  // Plans, which are let go of without the lock: what they own is others'.
  using Released = std::vector<std::shared_ptr<const Compiled>>;

  // The lock, for who may make a command buffer.
  std::unique_lock<std::mutex> enter();
  // Each of these under the lock.
  Commands& commands();
  void dispatch(const Pipeline& pipeline, std::span<const void* const> addresses,
                std::span<const std::byte> bytes, uint32_t blocks, uint32_t threads);
  void launch_moves(const gpu::Launches& launches);
  void launch_all(const gpu::Ready& ready, std::span<const Binding> bindings, const char* memory);
  Ticket enqueued(size_t bytes, const std::shared_ptr<const Compiled>& compiled = nullptr);
  void commit(std::shared_ptr<Moment> moment = nullptr);
  void note_done(Released& released) noexcept;

  void launch(const gpu::Ready& ready, std::span<const Binding> bindings);
  void run_on_host(const gpu::Code& code, size_t pass, std::span<const Binding> bindings);
  void run(const gpu::Code& code, size_t pass, std::span<const Binding> bindings);
  template <class Launch>
  const Pipeline* pipeline_of(const Launch& launch) const;
  template <class Launch>
  std::optional<Ticket> run_native(std::span<const Launch> launches, size_t bytes);
  bool holds(const void* address) const noexcept { return memory_.find(address).has_value(); }
  bool holds_all(const Group& group, std::span<const Binding> bindings) const noexcept;
  void finish() noexcept;
  void reach(Ticket ticket) const noexcept;
  void finished(Ticket first, Ticket last, const Finished& how) noexcept;

  Memory& memory_;
  Kernels& kernels_;
  const std::function<void()>& give_back_idle_;
  const CommandQueue queue_;
  Event event_;
  std::mutex mutex_;                   // of all below, but for done_
  std::optional<Commands> open_;       // that are being encoded
  size_t operations_ = 0, bytes_ = 0;  // of these
  Ticket last_ = 0, committed_ = 0;
  std::deque<Submitted> submitted_;  // in order, those not known to be done
  char* scratch_ = nullptr;          // of the kernels of one run, then of those of the next
  size_t scratch_bytes_ = 0;
  std::exception_ptr error_;  // that nobody has been told of
  size_t running_ = 0;        // command buffers whose end has not been reported
  std::condition_variable reported_;
  std::atomic<Ticket> done_{0};
};

}  // namespace hologram::metal
