// Programs that come again as CUDA graphs: one launch for all that a program enqueues.
//
// What a program is about to enqueue is written down first (Work). Where the same kernels, products
// and calls have been written down before, they become a graph: the launches are captured, in their
// order, on a stream of their own. When the work comes again it is one launch of the graph, and
// what has changed of the kernels' arguments - addresses, numbers - is set in the graph before, and
// tables of them are sent again. A program whose products or calls have other addresses is another
// graph, or is launched as it was.
//
// Setting the arguments of a kernel takes a fifth of the time of a launch; so what is worth one
// launch of a graph is worth the setting of all its kernels.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "atlas/call.h"
#include "atlas/product.h"
#include "atlas/queue.h"
#include "cuda/driver.h"
#include "cuda/launcher.h"
#include "cuda/products.h"

namespace hologram::cuda {

// What a program enqueues, in order.
class Work {
 public:
  void clear() noexcept;
  // Of the addresses those that a bit of `tables` stands for are places in the tables: bytes from
  // their beginning, see add_tables().
  void add(const KernelLaunch& launch, uint64_t tables = 0);
  void add(const Product& product);
  void add(const std::shared_ptr<Call>& call, std::span<void* const> memory);
  // Bytes that a kernel reads on the device, to be written; they begin where it says.
  std::byte* add_tables(size_t bytes, size_t& begin);

  size_t size() const noexcept { return steps_.size(); }

 private:
  friend class Replays;

  enum class Kind : uint8_t { kernel, product, call };
  struct Step {
    Kind kind = Kind::kernel;
    Function function = nullptr;
    unsigned blocks = 0, threads = 0;
    uint32_t addresses = 0, bytes = 0;  // of the arguments
    uint32_t first = 0;                 // byte of the arguments, or number of the product or call
    bool operator==(const Step&) const = default;
  };
  struct LaunchedCall {
    std::shared_ptr<Call> body;
    std::vector<void*> memory;
    bool is_like(const LaunchedCall& other) const noexcept {
      return memory == other.memory && body->is_launched_as(*other.body);
    }
  };
  std::span<std::byte> arguments_of(const Step& step) noexcept {
    return {arguments_.data() + step.first, step.addresses * sizeof(Address) + step.bytes};
  }
  // Of a step that is a kernel.
  KernelLaunch launch_of(const Step& step) const noexcept;
  // From now on addresses in the tables are such of the device, where the tables are there.
  void place_tables(Address tables) noexcept;
  // Whether a graph of the one is a graph of the other when arguments have been set.
  bool is_like(const Work& other) const noexcept;
  uint64_t hash() const noexcept;

  std::vector<Step> steps_;
  std::vector<std::byte> arguments_;  // of kernels: addresses, then bytes
  std::vector<Product> products_;
  std::vector<LaunchedCall> calls_;
  std::vector<std::byte> tables_;
  std::vector<uint32_t> table_places_;  // bytes of the arguments, each an Address in the tables
};

// The graphs of one queue. Not synchronised: the queue calls it under its lock, with the context
// current.
class Replays {
 public:
  // With HOLOGRAM_REPLAY=0 there are none.
  explicit Replays(Products& products);
  Replays(const Replays&) = delete;
  Replays& operator=(const Replays&) = delete;

  // What a program is to write its work to, of one program at a time; null where it has not come
  // before, or its work is not worth being written down.
  Work* begin(const std::shared_ptr<const Compiled>& compiled);
  // Page-locked memory of so many bytes, to be copied from on the stream; null where there is none.
  using Stage = std::function<std::byte*(size_t)>;
  // Enqueues what has been written down as one graph; false, with nothing enqueued, where there is
  // none (yet).
  bool enqueue(const std::shared_ptr<const Compiled>& compiled, Stream stream, const Stage& stage);
  // The work cannot be written down.
  void give_up() noexcept { current_->skipped = kSkips; }

  // In the end.
  void free() noexcept;

  // Of all queues: graphs that were made, launched, of these the kernels that were set, and what
  // the driver refused.
  inline static std::atomic<uint64_t> made{0}, launched{0}, updated{0}, failed{0};

 private:
  struct Replay {
    std::shared_ptr<const Compiled> compiled;  // cold kernels read its programs
    Work work;                                 // that the graph does
    uint64_t hash = 0;                         // of the work
    Graph graph = nullptr;
    GraphExecutable executable = nullptr;
    std::vector<GraphNode> nodes;             // of each step, null for what is no kernel
    std::vector<std::shared_ptr<void>> kept;  // what captured calls need
    Address tables = 0;
  };
  using Place = std::list<Replay>::iterator;
  // What is known of a program. The layers of a model may be one program, each with other
  // addresses, and memory may take some steps to come round.
  struct Known {
    // Which it is: one that is gone may have had the address of another.
    std::weak_ptr<const Compiled> compiled;
    uint32_t times = 0;
    uint32_t skipped = 0;                         // so many times more it is not looked at
    bool has_refusing_call = false;               // which cannot be captured (any more)
    uint32_t misses = 0;                          // since there was a graph for it
    std::array<uint64_t, 64> seen{};              // hashes of work without a graph, in a ring
    uint32_t seen_last = 0;                       // place of the latest of them
    std::unordered_map<uint64_t, Place> replays;  // by the hash of their work
  };

  static constexpr size_t kMostKnown = 512, kMostReplays = 256;
  // Fewer launches are not worth a graph.
  static constexpr size_t kLeastSteps = 3;
  // Of what does not come again as it was: to write it down takes a tenth of the time of its
  // launches.
  static constexpr uint32_t kSkips = 3;

  bool launch(Place place, Stream stream, const Stage& stage);
  bool make(const std::shared_ptr<const Compiled>& compiled, Stream stream, uint64_t hash,
            const Stage& stage);
  Status capture(Replay& replay);
  Status update(Replay& replay);
  Status make_tables(Replay& replay);
  Status send_tables(Replay& replay, Stream stream, const Stage& stage);
  void destroy(Replay& replay) noexcept;
  void remove(Place place) noexcept;
  void fail(const Compiled& compiled, Status status, const char* what) noexcept;

  const Driver& driver_ = driver();
  Products& products_;
  bool is_on_;
  Stream stream_ = nullptr;  // on which is captured
  Work work_;
  std::list<Replay> replays_;  // what was launched last comes first
  std::unordered_map<const Compiled*, Known> known_;
  Known* current_ = nullptr;  // of the program that began last
};

}  // namespace hologram::cuda
