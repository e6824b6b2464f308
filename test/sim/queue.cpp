#include "queue.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "atlas/error.h"
#include "atlas/float_mode.h"
#include "atlas/own_bindings.h"
#include "code.h"
#include "memory.h"

namespace sim {

using namespace hologram;

double Moment::milliseconds_since(const hologram::Moment& other) const {
  const auto& before = static_cast<const Moment&>(other).time_;
  if (!time_ || !before) throw Error("an event was never recorded: its queue failed");
  const auto passed = *time_ - *before;
  return std::chrono::duration<double, std::milli>(passed).count();
}

Queue::Queue(QueueOptions options)
    : options_(std::move(options)), thread_(options_.seed, options_.most_delay) {}

Ticket Queue::push(Task task, Order::Text what, const std::vector<Range>& ranges) {
  const std::lock_guard guard(mutex_);
  if (!ranges.empty()) {
    const auto error = Order::instance().add(this, thread_.last() + 1, std::move(what), ranges);
    if (error && error_.empty()) error_ = options_.device + ": " + *error;
  }
  return thread_.push([this, task = std::move(task)] {
    try {
      task();
    } catch (const std::exception& raised) {
      const std::lock_guard lock(mutex_);
      if (error_.empty()) error_ = options_.device + ": " + raised.what();
    }
  });
}

// The memory that a pass touches.
static void append_ranges(const Group& group, std::span<const Binding> bindings,
                          std::vector<Range>& ranges) {
  std::vector<bool> written(group.operands.size());
  for (const Node& node : group.nodes) {
    if (node.kind == NodeKind::store) written[node.b] = true;
  }
  for (const Binding& binding : bindings) {
    for (size_t k = 0; k < group.operands.size(); ++k) {
      const Operand& operand = group.operands[k];
      const auto size = static_cast<int64_t>(dtype_size(operand.dtype));
      int64_t bytes = size;
      if (binding.count == 0) continue;
      if (operand.layout == Layout::dense) bytes = element_count(operand, binding) * size;
      if (operand.layout == Layout::strided) {
        const auto rank = static_cast<size_t>(binding.rank);
        for (size_t d = 0; d < rank; ++d) {
          bytes += (binding.sizes[d] - 1) * binding.strides[k * rank + d];
        }
      }
      const auto* const start = static_cast<const char*>(binding.operands[k]);
      ranges.push_back({start, start + bytes, written[k]});
    }
  }
}

Ticket Queue::submit(const std::shared_ptr<const Compiled>& compiled, Frame& frame) {
  std::vector<OwnBindings> passes;  // from `first` on, not enqueued yet
  std::vector<Range> ranges;
  size_t first = 0;
  const auto enqueue = [&] {
    // std::function copies what it holds.
    auto kept = std::make_shared<std::vector<OwnBindings>>(std::exchange(passes, {}));
    push(
        [this, compiled, kept, first, mode = frame.program().float_mode] {
          const FloatModeGuard guard(mode);
          static_cast<const Code&>(*compiled->code).prepare(first, *kept);
          for (size_t i = 0; i < kept->size(); ++i)
            run(*compiled, first + i, (*kept)[i].bindings());
        },
        [compiled, first] { return describe_pass(*compiled, first); }, std::exchange(ranges, {}));
  };
  for (size_t i = 0; i < compiled->plan.batches.size(); ++i) {
    Frame::Pass pass(frame, i);
    if (pass.is_call()) {
      if (!passes.empty()) enqueue();
      first = i + 1;
      call(pass, [compiled, i] { return describe_pass(*compiled, i); });
      continue;
    }
    passes.emplace_back(compiled->plan.batches[i].group, pass.bindings());
    if (options_.failing_launches.contains(++passes_submitted_)) {
      passes.back() = OwnBindings(compiled->plan.batches[i].group, {});
      pass.fail(Error(options_.device + ": could not launch " + describe_pass(*compiled, i)));
    }
    append_ranges(compiled->plan.batches[i].group, passes.back().bindings(), ranges);
    passes.back().translate([this](void* address) { return bytes_of(address); });
  }
  if (!passes.empty()) enqueue();
  return last();
}

// Torch's CPU kernels know no queue: it catches up before one, which has run on return.
void Queue::call(Frame::Pass& pass, Order::Text what) {
  std::vector<Range> ranges;
  for (const auto& touched : pass.touched_by_call()) {
    ranges.push_back({touched.memory, touched.memory + touched.bytes, touched.written});
  }
  push([] {}, std::move(what), ranges);
  try {
    if (options_.on_copies) {
      pass.call_on_copies(*this);
    } else {
      lend(nullptr);
      pass.call();
      take_back(nullptr);
    }
  } catch (const std::exception& error) {
    pass.fail(error);
  }
}

void Queue::run(const Compiled& compiled, size_t pass, std::span<const Binding> bindings) {
  try {
    if (options_.failing_runs.contains(++passes_)) throw Error("injected fault");
    static_cast<const Code&>(*compiled.code).run(pass, bindings);
  } catch (const std::exception& error) {
    throw Error(describe_pass(compiled, pass) + " failed: " + error.what());
  }
}

void Queue::transfer(const char* what, size_t bytes, const Task& task) {
  if (options_.failing_transfers.contains(++transfers_)) {
    throw Error(std::string(what) + " of " + std::to_string(bytes) +
                " bytes failed: injected fault");
  }
  task();
}

void* Queue::bytes_of(const void* address) const {
  return options_.own_memory ? Memory::bytes_of(address) : const_cast<void*>(address);
}

Ticket Queue::copy(void* to, const void* from, size_t bytes, Direction direction) {
  const auto range = [&](const void* start, bool written) -> Range {
    return {static_cast<const char*>(start), static_cast<const char*>(start) + bytes, written};
  };
  const std::vector<Range> ranges{range(to, true), range(from, false)};
  if (direction != Direction::to_host) to = bytes_of(to);
  if (direction != Direction::to_device) from = bytes_of(from);
  return push(
      [this, to, from, bytes] { transfer("copy", bytes, [&] { std::memcpy(to, from, bytes); }); },
      [bytes] { return "a copy of " + std::to_string(bytes) + " bytes"; }, ranges);
}

Ticket Queue::fill(void* to, const void* element, size_t element_bytes, size_t count) {
  std::array<char, 16> value{};
  std::memcpy(value.data(), element, element_bytes);
  const size_t bytes = element_bytes * count;
  const auto* const begin = static_cast<const char*>(to);
  char* const start = static_cast<char*>(bytes_of(to));
  return push(
      [this, value, start, element_bytes, bytes] {
        transfer("fill", bytes, [&] {
          for (size_t i = 0; i < bytes; i += element_bytes) {
            std::memcpy(start + i, value.data(), element_bytes);
          }
        });
      },
      [bytes] { return "a fill of " + std::to_string(bytes) + " bytes"; },
      {{begin, begin + bytes, true}});
}

std::optional<Ticket> Queue::copy_strided(const hologram::StridedCopy& copy) {
  // Where the elements are: bytes from the first one, in the order of the dimensions.
  const auto offsets = [&](std::span<const int64_t> strides) {
    std::vector<int64_t> all{0};
    for (size_t d = 0; d < copy.sizes.size(); ++d) {
      std::vector<int64_t> longer;
      for (const int64_t offset : all) {
        for (int64_t i = 0; i < copy.sizes[d]; ++i) {
          longer.push_back(offset + i * strides[d] * static_cast<int64_t>(copy.element_bytes));
        }
      }
      all.swap(longer);
    }
    return all;
  };
  const std::vector<int64_t> to = offsets(copy.to_strides), from = offsets(copy.from_strides);
  const auto range = [&](const void* first, const std::vector<int64_t>& at, bool written) -> Range {
    const auto* const begin = static_cast<const char*>(first);
    return {begin, begin + std::ranges::max(at) + copy.element_bytes, written};
  };
  const std::vector<Range> ranges{range(copy.to, to, true), range(copy.from, from, false)};
  auto* const out = static_cast<char*>(bytes_of(copy.to));
  const auto* const in = static_cast<const char*>(bytes_of(copy.from));
  return push(
      [this, to, from, out, in, element = copy.element_bytes] {
        transfer("copy", to.size() * element, [&] {
          for (size_t i = 0; i < to.size(); ++i) std::memcpy(out + to[i], in + from[i], element);
        });
      },
      [bytes = copy.bytes()] { return "a copy of " + std::to_string(bytes) + " bytes"; }, ranges);
}

Ticket Queue::record(std::shared_ptr<hologram::Moment> moment) {
  return push([this, moment = std::move(moment)] {
    if (options_.lost_records.contains(++records_)) {
      throw Error("recording an event failed: injected fault");
    }
    if (moment != nullptr) static_cast<Moment&>(*moment).take();
  });
}

void Queue::wait_for(const Fence& fence) {
  Order::instance().wait(this, push([fence] { fence.wait(); }), fence);
}

// The vendor's kernels run on the host, and know no queue: it catches up.
void Queue::lend(void* vendors) {
  stream = vendors;
  thread_.wait(thread_.last());
}

Ticket Queue::take_back(void* vendors) {
  stream = vendors;
  return record(nullptr);
}

Ticket Queue::last() noexcept {
  return thread_.last();
}

bool Queue::done(Ticket ticket) noexcept {
  return thread_.done(ticket);
}

void Queue::wait(Ticket ticket) {
  waits.fetch_add(1, std::memory_order_relaxed);
  thread_.wait(ticket);
  const std::lock_guard guard(mutex_);
  if (!error_.empty()) throw Error(std::exchange(error_, {}));
}

}  // namespace sim
