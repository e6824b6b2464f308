// A queue of a GPU: a stream of the driver's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atlas/queue.h"
#include "cuda/context.h"
#include "cuda/kernels.h"
#include "cuda/launcher.h"
#include "cuda/products.h"
#include "cuda/replay.h"
#include "cuda/staging.h"
#include "gpu/code.h"
#include "gpu/launch.h"

namespace hologram::cuda {

// An event of the driver's.
class Mark {
 public:
  // Throws Error.
  Mark(const Gpu& gpu, bool with_timing);
  ~Mark();
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  Event event() const noexcept { return event_; }
  bool with_timing() const noexcept { return with_timing_; }

 private:
  const Gpu& gpu_;
  const bool with_timing_;
  Event event_ = nullptr;
};

class Moment final : public hologram::Moment {
 public:
  explicit Moment(const Gpu& gpu) : gpu_(gpu), mark_(std::make_shared<Mark>(gpu, true)) {}
  // Throws Error where one of them was never taken.
  double milliseconds_since(const hologram::Moment& other) const override;
  const std::shared_ptr<Mark>& mark() const noexcept { return mark_; }

 private:
  const Gpu& gpu_;
  std::shared_ptr<Mark> mark_;
};

class Queue final : public hologram::Queue {
 public:
  // The stream is the driver's default one, which is torch's too, or one of its own.
  enum class Which : uint8_t { default_stream, own };
  // `give_back_idle`: see Backend.
  Queue(const Gpu& gpu, Kernels& kernels, ProductContext& products,
        const std::function<void()>& give_back_idle, Which which, int priority);
  // A stream that somebody else has made, and destroys when what he gave it is done.
  Queue(const Gpu& gpu, Kernels& kernels, ProductContext& products,
        const std::function<void()>& give_back_idle, Stream theirs);
  ~Queue() override;

  inline static gpu::RunCounts runs;  // of all queues

  Ticket submit(const std::shared_ptr<const Compiled>& compiled, Frame& frame) override;
  Ticket copy(void* to, const void* from, size_t bytes, Direction direction) override;
  bool reaches(const hologram::Queue& other) const noexcept override;
  Ticket copy_from(hologram::Queue& source, void* to, const void* from, size_t bytes) override;
  Ticket fill(void* to, const void* element, size_t element_bytes, size_t count) override;
  std::optional<Ticket> copy_strided(const StridedCopy& copy) override;
  bool copies_strided(const StridedCopy& copy) override;
  std::optional<Ticket> product(const Product& product) override;
  bool computes(const Product& product) override;
  Ticket record(std::shared_ptr<hologram::Moment> moment) override;
  void wait_for(const Fence& fence) override;
  void* vendor_stream() const noexcept override { return stream_; }
  bool takes_work() override;
  void lend(void* stream) override;
  Ticket take_back(void* stream) override;
  Ticket last() noexcept override;
  bool done(Ticket ticket) noexcept override;
  bool known_done(Ticket ticket) noexcept override {
    return ticket <= done_.load(std::memory_order_acquire);
  }
  void wait(Ticket ticket) override;

 private:
  struct Recorded {
    Ticket ticket;
    std::shared_ptr<Mark> mark;  // behind all up to it
  };
  struct Submitted {
    Ticket ticket;
    std::shared_ptr<const Compiled> compiled;
  };

  // Plans, which are let go of without the lock: what they own is others'.
  using Released = std::vector<std::shared_ptr<const Compiled>>;

  std::string name() const;
  template <class F>
  bool with_product(const Product& product, F&& call) const;
  void launch(Call& call, std::span<void* const> memory);
  void run_on_cpu(const gpu::Code& code, size_t pass, std::span<const Binding> bindings);
  bool captured() const;
  [[noreturn]] void refuse_capture(const std::string& what) const;
  bool run_known(const gpu::Code& code, size_t pass, std::span<const Binding> bindings);
  bool run_kernels(const gpu::Code& code, size_t pass, std::span<const Binding> bindings);
  std::optional<Ticket> replay(const std::shared_ptr<const Compiled>& compiled, Frame& frame);
  bool note_work(Work& work, const gpu::Ready& ready, std::span<const Binding> bindings);
  void make_room_and_launch(const gpu::Ready& ready, std::span<const Binding> bindings);
  void launch_all(const gpu::Ready& ready, std::span<const Binding> bindings, Address memory);
  template <class F>
  void each_launch(const gpu::Ready& ready, std::span<const Binding> bindings, Address scratch,
                   Address tables, F&& use) const;
  void note_copy(Work& work, const StridedCopy& copy);
  void launch_moves(const gpu::Launches& launches);
  template <class F>
  void each_move(const gpu::Launches& launches, F&& use) const;
  std::byte* stage(size_t bytes, Released& released);
  void send_tables(const gpu::Prepared& prepared, std::span<const Binding> bindings, Address to,
                   Released& released);
  void launch(const gpu::Kernel& kernel, const KernelLaunch& its);
  Address scratch(size_t bytes);
  void have_counters();
  Ticket next() noexcept { return ++last_; }
  Ticket enqueued();
  Ticket ask(Ticket ticket, Released& released);
  void keep(const std::shared_ptr<const Compiled>& compiled, Ticket ticket);
  Recorded mark_behind(Ticket ticket);
  std::shared_ptr<Mark> new_mark();
  Status look(Released& released) noexcept;
  void note_done(Ticket ticket, Released& released) noexcept;
  void tidy(Released& released) noexcept;
  [[noreturn]] void lost(Status status);
  void transferred(Status status, const char* what, size_t bytes);

  const Gpu& gpu_;
  const Driver& driver_;
  Kernels& kernels_;
  const std::function<void()>& give_back_idle_;
  Stream stream_ = nullptr;
  const bool owned_ = true;
  std::mutex mutex_;  // of all below, and of what is enqueued
  Ticket last_ = 0;
  std::deque<Recorded> recorded_;             // in order, those not known to be reached
  std::deque<Submitted> submitted_;           // in order, those not known to be finished
  std::vector<std::shared_ptr<Mark>> marks_;  // that may be used again
  size_t most_kept_ = 0;                      // of these, before the queue looks
  Address scratch_ = 0;  // of the kernels of one run, then of those of the next
  size_t scratch_bytes_ = 0;
  Address counters_ = 0;  // gpu::kCounters, of the kernels that need some
  Staging staging_;       // of tables
  Launcher launcher_;
  Products products_;
  Replays replays_{products_};
  std::map<Stream, Ticket> lent_;  // up to where other streams are behind this one
  std::exception_ptr error_;       // that nobody has been told of
  std::atomic<Ticket> done_{0};
};

}  // namespace hologram::cuda
