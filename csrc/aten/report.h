// Counts of how operators were served, and what to do when one is delegated.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/macros/Macros.h>

#include "aten/delegate_target.h"
#include "atlas/fork.h"

namespace hologram::aten {

enum class Served : uint8_t { native, delegated, copied };
const char* served_name(Served kind);

// The counters of one operator overload. Made once, never destroyed.
struct OpCounter {
  explicit OpCounter(std::string op_name) : name(std::move(op_name)) {}
  const std::string name;  // "aten::add.Tensor"
  std::atomic<uint64_t> native{0};
  std::atomic<uint64_t> delegated{0};
  std::atomic<uint64_t> copied{0};
  std::atomic<bool> warned{false};
};

// The counter of that name, the same one for the same name.
OpCounter& op_counter(const std::string& name);

enum class FallbackMode : uint8_t { allow, warn, error };
void set_fallback_mode(const std::string& mode);  // throws ValueError for an unknown name
std::string fallback_mode();

// Throws RuntimeError in a forked child: the parent's threads, and the locks they held, are gone.
void refuse_forked_child();

// Counts a call of torch's kernel for a target, `delegated` where it runs on the device's memory
// and `copied` where it runs on copies; by mode, warns once per operator or throws
// NotImplementedError.
void note_delegated(OpCounter& counter, const DelegateTarget& target);
inline void note_delegated(OpCounter& counter, c10::DeviceIndex device) {
  note_delegated(counter, target_of(device));
}
inline void note_native(OpCounter& counter) {
  if (C10_UNLIKELY(in_forked_child())) {
    refuse_forked_child();
  }
  counter.native.fetch_add(1, std::memory_order_relaxed);
}

struct ReportRow {
  std::string name;
  Served kind;
  uint64_t count;
};
std::vector<ReportRow> fallback_report();  // rows with a count, sorted by name
void reset_fallback_report();

}  // namespace hologram::aten
