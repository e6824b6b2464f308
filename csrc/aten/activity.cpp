#include "aten/precompiled.h"

#include "aten/activity.h"

#include "aten/compat.h"

#if HOLOGRAM_HAS_ACTIVITIES

#include <ATen/record_function.h>
#include <kineto/libkineto.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace torch::profiler::impl {
// Of torch/csrc/profiler/standalone/privateuse1_profiler.h, which includes kineto's headers as if
// their folder were searched.
class TORCH_API PrivateUse1ProfilerRegistry {
 public:
  using Factory = std::function<std::unique_ptr<libkineto::IActivityProfiler>()>;
  static PrivateUse1ProfilerRegistry& instance();
  void registerFactory(Factory factory);
};
}  // namespace torch::profiler::impl

namespace hologram::aten {
namespace {

struct Busy {
  std::string name;
  c10::DeviceIndex device;
  int64_t start, end;   // nanoseconds since the epoch
  int64_t correlation;  // of the operator it belongs to, 0 for none
  int32_t thread;
  const void* owner;
};

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Of one thread, the innermost last.
struct Here {
  std::vector<Busy> open;
  std::vector<std::string> operators;
  std::vector<int64_t> correlations;
};
Here& here() {
  static thread_local Here here;
  return here;
}

// Leaked: a thread may end an activity while the process ends.
struct Collected {
  std::mutex mutex;
  std::vector<Busy> all;
};
Collected& collected() {
  static auto* collected = new Collected();
  return *collected;
}

void collect(Busy& busy) {
  busy.end = now();
  if (!activities_on.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(collected().mutex);
  collected().all.push_back(busy);
}

std::unique_ptr<at::ObserverContext> enter_operator(const at::RecordFunction& function) {
  here().operators.emplace_back(function.name());
  return nullptr;
}
void leave_operator(const at::RecordFunction&, at::ObserverContext*) {
  // Those that were entered before are not here.
  if (auto& operators = here().operators; !operators.empty()) operators.pop_back();
}

using libkineto::ActivityLogger;
using libkineto::ActivityType;

class Session final : public libkineto::IActivityProfilerSession {
 public:
  ~Session() override { stop(); }

  void start() override {
    {
      const std::lock_guard lock(collected().mutex);
      collected().all.clear();
    }
    names_ = at::addGlobalCallback(at::RecordFunctionCallback(&enter_operator, &leave_operator)
                                       .scopes({at::RecordScope::FUNCTION}));
    activities_known.store(true, std::memory_order_relaxed);
    activities_on.store(true, std::memory_order_relaxed);
    buffer_->span.startTime = now();
    status_ = libkineto::TraceStatus::RECORDING;
  }
  void stop() override {
    if (names_ == 0) return;
    activities_on.store(false, std::memory_order_relaxed);
    at::removeCallback(std::exchange(names_, 0));
    buffer_->span.endTime = now();
    status_ = libkineto::TraceStatus::PROCESSING;
  }
  std::vector<std::string> errors() override { return {}; }

  void processTrace(ActivityLogger& logger) override {
    processTrace(
        logger, [](int32_t) { return nullptr; }, 0, 0);
  }
  void processTrace(ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t,
                    int64_t) override {
    std::vector<Busy> all;
    {
      const std::lock_guard lock(collected().mutex);
      all.swap(collected().all);
    }
    for (Busy& busy : all) {
      buffer_->emplace_activity(buffer_->span, ActivityType::CONCURRENT_KERNEL, busy.name);
      auto& activity = libkineto::CpuTraceBuffer::toRef(buffer_->activities.back());
      activity.startTime = busy.start;
      activity.endTime = busy.end;
      activity.id = static_cast<int32_t>(busy.correlation);
      activity.device = busy.device;
      activity.resource = 0;
      activity.threadId = busy.thread;
      activity.flow.id = static_cast<uint32_t>(busy.correlation);
      activity.flow.type = libkineto::kLinkAsyncCpuGpu;
      activity.flow.start = 0;
      activity.linked = linked(activity.id);
      activity.log(logger);
    }
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return nullptr; }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return std::move(buffer_);
  }

  void pushCorrelationId(uint64_t id) override {
    here().correlations.push_back(static_cast<int64_t>(id));
  }
  void popCorrelationId() override {
    if (auto& ids = here().correlations; !ids.empty()) ids.pop_back();
  }

 private:
  at::CallbackHandle names_ = 0;
  // Its activities refer to its span.
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_ =
      std::make_unique<libkineto::CpuTraceBuffer>();
};

class Activities final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return types_; }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& types, const libkineto::Config&) override {
    return types.count(ActivityType::CONCURRENT_KERNEL) != 0 ? std::make_unique<Session>()
                                                             : nullptr;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<ActivityType>& types,
      const libkineto::Config& config) override {
    return configure(types, config);
  }

 private:
  std::string name_ = "hologram";
  std::set<ActivityType> types_ = {ActivityType::CONCURRENT_KERNEL};
};

}  // namespace

void begin_activity(const void* owner, c10::DeviceIndex device, std::string name) {
  Here& thread = here();
  if (name.empty() && !thread.operators.empty()) name = thread.operators.back();
  const int64_t correlation = thread.correlations.empty() ? 0 : thread.correlations.back();
  // What contains it stands still meanwhile.
  if (!thread.open.empty()) collect(thread.open.back());
  thread.open.push_back(
      {std::move(name), device, now(), 0, correlation, libkineto::systemThreadId(), owner});
}

void end_activity(const void* owner) noexcept {
  Here& thread = here();
  if (thread.open.empty() || thread.open.back().owner != owner) return;
  collect(thread.open.back());
  thread.open.pop_back();
  if (!thread.open.empty()) thread.open.back().start = now();
}

void register_activities() {
  torch::profiler::impl::PrivateUse1ProfilerRegistry::instance().registerFactory(
      [] { return std::make_unique<Activities>(); });
}

}  // namespace hologram::aten

#else

namespace hologram::aten {
void begin_activity(const void*, c10::DeviceIndex, std::string) {}
void end_activity(const void*) noexcept {}
void register_activities() {}
}  // namespace hologram::aten

#endif
