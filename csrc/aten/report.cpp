#include "aten/precompiled.h"

#include "aten/report.h"

#include <c10/util/Exception.h>

#include <map>
#include <memory>
#include <mutex>

namespace hologram::aten {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<OpCounter>> counters;
};

Registry& registry() {
  static auto* registry = new Registry();
  return *registry;
}

std::atomic<FallbackMode> mode{FallbackMode::allow};
constexpr const char* mode_names[] = {"allow", "warn", "error"};

}  // namespace

const char* served_name(Served kind) {
  constexpr const char* names[] = {"native", "delegated", "copied"};
  return names[static_cast<size_t>(kind)];
}

OpCounter& op_counter(const std::string& name) {
  auto& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto& slot = all.counters[name];
  if (!slot) {
    slot = std::make_unique<OpCounter>(name);
  }
  return *slot;
}

void set_fallback_mode(const std::string& name) {
  for (size_t index = 0; index < std::size(mode_names); ++index) {
    if (name == mode_names[index]) {
      mode.store(static_cast<FallbackMode>(index), std::memory_order_relaxed);
      return;
    }
  }
  TORCH_CHECK_VALUE(false, "fallback mode must be 'allow', 'warn' or 'error', got '", name, "'");
}

std::string fallback_mode() {
  return mode_names[static_cast<size_t>(mode.load(std::memory_order_relaxed))];
}

void refuse_forked_child() {
  TORCH_CHECK(false,
              "Cannot re-initialize hologram in forked subprocess. To use hologram with "
              "multiprocessing, you must use the 'spawn' start method");
}

void note_delegated(OpCounter& counter, const DelegateTarget& target) {
  if (C10_UNLIKELY(in_forked_child())) {
    refuse_forked_child();
  }
  const bool copies = target.kind == DelegateTarget::Kind::copied;
  const char* const where = copies ? "copies of the memory" : "the same memory";
  const auto now = mode.load(std::memory_order_relaxed);
  if (C10_UNLIKELY(now != FallbackMode::allow)) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        now != FallbackMode::error, counter.name,
        " has no native hologram kernel and set_fallback_mode('error') is on; with 'allow' it runs "
        "in torch's ",
        target.name(), " kernel on ", where);
    if (!counter.warned.exchange(true)) {
      TORCH_WARN(counter.name, " has no native hologram kernel; torch's ", target.name(),
                 " kernel runs on ", where);
    }
  }
  (copies ? counter.copied : counter.delegated).fetch_add(1, std::memory_order_relaxed);
}

std::vector<ReportRow> fallback_report() {
  auto& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  std::vector<ReportRow> rows;
  for (const auto& [name, counter] : all.counters) {
    const std::pair<Served, uint64_t> kinds[] = {{Served::native, counter->native.load()},
                                                 {Served::delegated, counter->delegated.load()},
                                                 {Served::copied, counter->copied.load()}};
    for (const auto& [kind, count] : kinds) {
      if (count != 0) {
        rows.push_back({name, kind, count});
      }
    }
  }
  return rows;
}

void reset_fallback_report() {
  auto& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  for (auto& [name, counter] : all.counters) {
    counter->native = 0;
    counter->delegated = 0;
    counter->copied = 0;
    counter->warned = false;
  }
}

}  // namespace hologram::aten
