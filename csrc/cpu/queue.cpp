#include "cpu/queue.h"

#include <cstring>
#include <exception>

#include "atlas/float_mode.h"
#include "cpu/code.h"
#include "cpu/fill.h"

namespace hologram::cpu {
namespace {

constinit std::atomic<Parallel*> threads{nullptr};

}  // namespace

void set_parallel(Parallel& parallel) noexcept {
  threads.store(&parallel, std::memory_order_release);
}

Parallel& parallel() noexcept {
  Parallel* const given = threads.load(std::memory_order_acquire);
  return given != nullptr ? *given : serial();
}

double Moment::milliseconds_since(const hologram::Moment& other) const {
  const auto from = static_cast<const Moment&>(other).time_.load(std::memory_order_relaxed);
  const auto passed = time_.load(std::memory_order_relaxed) - from;
  return std::chrono::duration<double, std::milli>(passed).count();
}

Ticket Queue::submit(const std::shared_ptr<const Compiled>& compiled, Frame& frame) {
  const FloatModeGuard mode(frame.program().float_mode);
  Parallel& shared = parallel();
  const auto& groups = static_cast<const Code&>(*compiled->code).groups;
  for (size_t i = 0; i < groups.size(); ++i) {
    Frame::Pass pass(frame, i);
    try {
      if (pass.is_call()) {
        pass.call();
      } else {
        run(*groups[i], pass.bindings(), shared);
      }
    } catch (const std::exception& error) {
      pass.fail(error);
    }
  }
  return next();
}

Ticket Queue::copy(void* to, const void* from, size_t bytes, Direction) {
  std::memcpy(to, from, bytes);
  return next();
}

Ticket Queue::fill(void* to, const void* element, size_t element_bytes, size_t count) {
  cpu::fill(to, element, element_bytes, count);
  return next();
}

Ticket Queue::record(std::shared_ptr<hologram::Moment> moment) {
  if (moment != nullptr) static_cast<Moment&>(*moment).take();
  return next();
}

}  // namespace hologram::cpu
