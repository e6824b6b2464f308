#include "event.h"

#include <chrono>

#include "commands.h"

namespace simulated_metal {

SharedEvent::SharedEvent() : Object(Kinds::instance().at("MTLSharedEvent")) {}

uint64_t SharedEvent::value() {
  const std::lock_guard guard(mutex_);
  return value_;
}

void SharedEvent::set(uint64_t value) {
  const std::lock_guard guard(mutex_);
  if (value < value_ && !CommandBuffer::has_any_failed()) {
    misuse("an event of value " + std::to_string(value_) + " falls to " + std::to_string(value));
  }
  value_ = value;
  changed_.notify_all();
}

void SharedEvent::wait(uint64_t value) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return value_ >= value; });
}

bool SharedEvent::wait(uint64_t value, uint64_t milliseconds) {
  std::unique_lock lock(mutex_);
  // Of more than a day: as long as it takes. The clock has no such numbers.
  constexpr uint64_t kMost = 24 * 3600 * 1000;
  const std::chrono::milliseconds most(milliseconds < kMost ? milliseconds : kMost);
  return changed_.wait_for(lock, most, [&] { return value_ >= value; });
}

void define_events(Kinds& kinds) {
  Kind& event = kinds.define("MTLSharedEvent");
  event.add("signaledValue", [](SharedEvent* self, SEL) { return self->value(); });
  event.add("setSignaledValue:", [](SharedEvent* self, SEL, uint64_t value) { self->set(value); });
  event.add("waitUntilSignaledValue:timeoutMS:",
            [](SharedEvent* self, SEL, uint64_t value, uint64_t milliseconds) {
              return self->wait(value, milliseconds);
            });
}

}  // namespace simulated_metal
