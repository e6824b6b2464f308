#include "aten/precompiled.h"

#include "aten/device_errors.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

namespace hologram::aten {
namespace {

// The core takes its text as it is, without the call stack that torch's has.
struct DeviceException final : c10::AcceleratorError, AboutDevice {
  DeviceException(int status, const std::string& what)
      : c10::AcceleratorError({__func__, __FILE__, __LINE__}, status, what) {}
  const char* what() const noexcept override { return what_without_backtrace(); }
};

struct Operand {
  static constexpr size_t kMostSizes = 5;
  c10::ScalarType dtype{};
  int64_t dims = 0;
  std::array<int64_t, kMostSizes> sizes{};  // the first ones

  explicit Operand(const at::Tensor& tensor) : dtype(tensor.scalar_type()) {
    if (tensor.is_nested()) return;  // it has no sizes
    const auto all = tensor.unsafeGetTensorImpl()->sizes();
    dims = static_cast<int64_t>(all.size());
    std::copy_n(all.begin(), std::min(all.size(), kMostSizes), sizes.begin());
  }
  Operand() = default;

  std::string text() const {
    std::string list;
    for (size_t i = 0; i < std::min(static_cast<size_t>(dims), kMostSizes); ++i) {
      list += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
    }
    if (static_cast<size_t>(dims) > kMostSizes) list += ", ...";
    return std::string(c10::getDtypeNames(dtype).first) + " [" + list + "]";
  }
};

struct Call {
  static constexpr size_t kMostOperands = 4;
  const std::string* name = nullptr;
  size_t count = 0;
  std::array<Operand, kMostOperands> operands{};  // the first ones

  void add(const at::Tensor& tensor) {
    if (count < kMostOperands) operands[count] = Operand(tensor);
    ++count;
  }
  std::string text() const {
    std::string list;
    for (size_t i = 0; i < std::min(count, kMostOperands); ++i) {
      list += (i == 0 ? "" : ", ") + operands[i].text();
    }
    if (count > kMostOperands) list += ", ...";
    return *name + "(" + list + ")";
  }
};

// Of all threads, in the order of the calls.
class LastCalls {
 public:
  void add(const Call& call) {
    const std::lock_guard guard(mutex_);
    calls_[next_++ % calls_.size()] = call;
  }
  // The newest first; empty where there are none.
  std::string text() const {
    const std::lock_guard guard(mutex_);
    std::string result;
    for (size_t i = 0; i < std::min(next_, calls_.size()); ++i) {
      result += (i == 0 ? "" : "; ") + calls_[(next_ - 1 - i) % calls_.size()].text();
    }
    return result;
  }

 private:
  static constexpr size_t kMost = 8;
  mutable std::mutex mutex_;
  std::array<Call, kMost> calls_;
  size_t next_ = 0;
};

LastCalls& last_calls() {
  static LastCalls& all = *new LastCalls;
  return all;
}
thread_local Call given;

}  // namespace

void raise_device_error(DeviceFault&& fault) {
  if (fault.lost) {
    const std::string calls = last_calls().text();
    if (!calls.empty()) fault.what += ". The last calls of torch's kernels on GPUs were: " + calls;
  }
  throw DeviceException(fault.status, fault.what);
}

void raise_device_error_again(const std::string& what) {
  throw DeviceException(0, what);
}

void note_vendor_argument(const at::Tensor& tensor, bool first) {
  if (first) given.count = 0;
  given.add(tensor);
}

void note_vendor_call(const std::string& name) {
  given.name = &name;
  last_calls().add(given);
  given.count = 0;
}

}  // namespace hologram::aten
