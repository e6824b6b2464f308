// What changes from one run of a plan to the next: addresses, sizes and numbers, and what failed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atlas/canonicalise.h"
#include "atlas/column.h"
#include "atlas/export.h"
#include "atlas/product.h"
#include "atlas/program.h"
#include "atlas/strided_copy.h"

namespace hologram {

class Queue;

// Why an instruction was not executed.
struct Failure {
  std::string what;
  bool out_of_memory = false;
  bool out_of_range = false;
  bool of_device = false;  // an AboutDevice
};
std::shared_ptr<const Failure> failure_of(const std::exception& error);

// Is told what runs, for profilers: by the thread that runs it, outside all locks but the one
// that runs programs one after another, so it must not flush.
class Watcher {
 public:
  virtual ~Watcher() = default;
  // Asked at each flush; the others are called only where it answers yes.
  virtual bool watches() noexcept = 0;
  virtual void begin(const std::string& name) = 0;
  virtual void end() noexcept = 0;  // of what began last and has not ended
};

// Tells a watcher, if there is one, how long it lives.
class Watched {
 public:
  template <class Name>
  Watched(Watcher* watcher, Name&& name) : watcher_(watcher) {
    if (watcher_ != nullptr) [[unlikely]]
      watcher_->begin(name());
  }
  ~Watched() {
    if (watcher_ != nullptr) [[unlikely]]
      watcher_->end();
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

 private:
  Watcher* watcher_;
};

// Its operations, in order, each once: "mul, add".
std::string operation_names(const Group& group);
HOLOGRAM_EXPORT std::string operation_names(const Batch& batch);

// How often each operand of each batch of a plan is gone through.
using Traversals = std::vector<std::vector<uint8_t>>;

// Why the values of a slot are missing; null, or nothing at all, where they are there.
using Failures = std::vector<std::shared_ptr<const Failure>>;

// Kept from run to run, so that a run allocates nothing.
class Frame {
 public:
  // Before the passes of a plan. All four are the caller's until the last pass has ended; `watcher`
  // may be null. `failures` holds what is missing already.
  void begin(const Plan& plan, const Traversals& traversals, const Program& program,
             Watcher* watcher, Failures failures = {});

  const Program& program() const noexcept { return *program_; }
  bool is_watched() const noexcept { return watcher_ != nullptr; }

  // Address of each slot's block; null where the plan never touches it.
  Column<char*> bases;

  // One pass that runs or is enqueued. One at a time, each once, in order.
  class HOLOGRAM_EXPORT Pass {
   public:
    Pass(Frame& frame, size_t number);
    // Of the groups that load nothing that is missing. Valid while the pass lives.
    std::span<const Binding> bindings() const noexcept {
      return {frame_.bindings_.data(), frame_.bindings_.size()};
    }
    // Whether it is a call, which has no bindings. Who runs it calls call() once, after what is
    // enqueued and before what is enqueued later; it is done on return, or has thrown.
    bool is_call() const noexcept { return batch_->is_call(); }
    void call();
    // The same where the host cannot touch the memory: over copies, which the queue makes. Waits
    // for it.
    void call_on_copies(Queue& queue);
    // The matrix product that a call is, which a queue may compute instead.
    std::optional<Product> product() const;
    // The same of a copy between strides.
    std::optional<StridedCopy> strided_copy() const;
    // The same with the function of its result that a later pass computes, in the place of what
    // that writes. Where the queue computes it, it says so.
    std::optional<Product> product_with_epilogue(const Product& product) const;
    void note_epilogue();
    // The call, if it is one that a queue that is a stream launches (Call::launch); its addresses.
    const std::shared_ptr<Call>* launched() const noexcept;
    std::span<void* const> addresses() const noexcept;
    // What a call touches, for queues that look after order: addresses, bytes, whether it writes.
    struct Touched {
      char* memory;
      size_t bytes;
      bool written;
    };
    std::vector<Touched> touched_by_call() const;
    // It cannot run, and has stored nothing.
    void fail(const std::exception& error);

   private:
    const Epilogue* epilogue() const;

    Frame& frame_;
    const size_t number_;
    const Batch* batch_;
    std::optional<Batch> rest_;
    const Watched watched_;
  };

  // Whether a call has computed a pass, which then is not run.
  bool is_done(size_t pass) const noexcept { return !done_.empty() && done_[pass]; }
  void forget_epilogues() noexcept { done_.clear(); }

  // After the last pass.
  Failures failures;                      // by slot, empty if there are none
  std::shared_ptr<const Failure> raised;  // the first one
  uint64_t bytes_moved = 0;               // loaded and stored by the passes

 private:
  void bind(const Batch& batch, const std::vector<uint8_t>& traversals);
  void bind_call(const Batch& batch);
  std::optional<Batch> what_can_run(const Batch& batch);
  void mark_stores(const Batch& batch, const Batch::Member& member,
                   const std::shared_ptr<const Failure>& failure);

  const Plan* plan_ = nullptr;
  const Traversals* traversals_ = nullptr;
  const Program* program_ = nullptr;
  Watcher* watcher_ = nullptr;
  std::vector<bool> done_;  // by pass, empty if there are none
  // Of the pass.
  Column<Binding> bindings_;
  Column<void*> operands_;
  Column<uint64_t> immediates_;
  Column<int64_t> strides_;
};

// Whether storing to an access leaves nothing of what its block held.
bool covers(const Program& program, uint16_t access);

}  // namespace hologram
