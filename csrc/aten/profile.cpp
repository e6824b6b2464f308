#include "aten/precompiled.h"

#include "aten/profile.h"

#include <ATen/record_function.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <memory>
#include <string>
#include <vector>

#include "aten/activity.h"
#include "aten/runtime.h"
#include "atlas/device.h"
#include "atlas/window.h"

namespace hologram::aten {
namespace {

// Of this thread, the innermost last.
std::vector<std::unique_ptr<at::RecordFunction>>& open_events() {
  static thread_local std::vector<std::unique_ptr<at::RecordFunction>> events;
  return events;
}

// A flush runs inside the operator that needs the result, or inside none. As an event of its own it
// is not part of that operator's own time.
class EventWatcher final : public Watcher {
 public:
  bool watches() noexcept override {
    return at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value();
  }
  void begin(const std::string& name) override {
    auto& event =
        open_events().emplace_back(std::make_unique<at::RecordFunction>(at::RecordScope::FUNCTION));
    if (event->isActive()) event->before(name);
    if (activities_on.load(std::memory_order_relaxed) && name.starts_with("hologram::pass")) {
      begin_activity(event.get(), current_device(), name);
    }
  }
  void end() noexcept override {
    end_activity_of(open_events().back().get());
    open_events().pop_back();
  }
};

// The device is the host: what it does between two marks is what happens between them.
struct HostStubs final : torch::profiler::impl::ProfilerStubs {
  using Mark = torch::profiler::impl::ProfilerVoidEventStub;

  void record(c10::DeviceIndex* device, Mark* mark, int64_t* cpu_ns) const override {
    const int64_t time = c10::getTime();
    if (device != nullptr) *device = current_device();
    if (cpu_ns != nullptr) *cpu_ns = time;
    *mark = std::make_shared<int64_t>(time);
  }
  float elapsed(const Mark* start, const Mark* end) const override {
    const auto time = [](const Mark* mark) { return *static_cast<const int64_t*>(mark->get()); };
    return static_cast<float>(time(end) - time(start)) / 1000.0f;  // microseconds
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> call) const override {
    for (int index = 0; index < device_count(); ++index) call(index);
  }
  void synchronize() const override {
    for (int index = 0; index < device_count(); ++index) {
      if (Device* device = device_if_used(index)) device->synchronize();
    }
  }
};

}  // namespace

void register_profiler() {
  static EventWatcher watcher;
  static HostStubs stubs;
  Window::set_watcher(&watcher);
  torch::profiler::impl::registerPrivateUse1Methods(&stubs);
  register_activities();
}

}  // namespace hologram::aten
