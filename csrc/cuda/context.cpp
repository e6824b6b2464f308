#include "cuda/context.h"

#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "atlas/error.h"
#include "cuda/kernels.h"

namespace hologram::cuda {
namespace {

// What the kernels are compiled for.
constexpr int kLeastMajor = 7, kLeastMinor = 5;

struct Identity {
  DeviceNumber device = 0;
  int major = 0, minor = 0;
};

// Without a context. Throws Error.
Identity identify(int ordinal) {
  const Driver& d = driver();
  Identity its;
  check(d.device_get(&its.device, ordinal), "cuDeviceGet");
  check(d.device_attribute(&its.major, Attribute::major, its.device), "cuDeviceGetAttribute");
  check(d.device_attribute(&its.minor, Attribute::minor, its.device), "cuDeviceGetAttribute");
  return its;
}

// Why a GPU cannot be used; empty if it can.
std::string objection(int ordinal) {
  try {
    const auto [device, major, minor] = identify(ordinal);
    if (major < kLeastMajor || (major == kLeastMajor && minor < kLeastMinor)) {
      return "whose device " + std::to_string(ordinal) + " has compute capability " +
             std::to_string(major) + "." + std::to_string(minor) + "; 7.5 or newer is needed";
    }
    check_kernels(major, minor);
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

struct Usable {
  std::vector<int> gpus;
  std::string error;  // of the first one that is not
};

Usable find_usable() {
  Usable found;
  int count = 0;
  check(driver().device_count(&count), "cuDeviceGetCount");
  for (int i = 0; i < count; ++i) {
    const std::string error = objection(i);
    if (error.empty()) found.gpus.push_back(i);
    if (found.error.empty()) found.error = error;
  }
  return found;
}

}  // namespace

Gpu::Gpu(int ordinal) : ordinal(ordinal) {
  check_process();
  const Identity its = identify(ordinal);
  device = its.device;
  major = its.major;
  minor = its.minor;
  check(driver().retain_context(&context, device), "cuDevicePrimaryCtxRetain");
}

void have_access(const Gpu& gpu, const Gpu& other) {
  static std::mutex mutex;
  static auto& known = *new std::set<std::pair<int, int>>;
  const std::lock_guard lock(mutex);
  if (!known.emplace(gpu.ordinal, other.ordinal).second) return;
  int can = 0;
  check(driver().can_access_peer(&can, gpu.device, other.device), "cuDeviceCanAccessPeer");
  if (can == 0 || gpu.ordinal == other.ordinal) return;
  const Status status = driver().enable_peer_access(other.context, 0);
  // torch may have done it; and a GPU has a limited number of others, beyond which the driver goes
  // through the host.
  if (status != kPeerAccessIsEnabled && status != kTooManyPeers) {
    check(status, "cuCtxEnablePeerAccess");
  }
}

DeviceFault lost_fault(const Gpu& gpu, Status status, const std::string& what) {
  return {"CUDA device " + std::to_string(gpu.ordinal) + ": " + describe(status) + what +
              ". The device cannot be used any more by this process",
          status, true};
}

void LaunchGuard::enter(const Gpu& gpu, Context current) {
  if (current == nullptr) return check(driver_.set_context(gpu.context), "cuCtxSetCurrent");
  check(driver_.push_context(gpu.context), "cuCtxPushCurrent");
  pushed_ = true;
}

void give_context(const Gpu& gpu) {
  Context current = nullptr;
  check(driver().current_context(&current), "cuCtxGetCurrent");
  if (current == nullptr) check(driver().set_context(gpu.context), "cuCtxSetCurrent");
}

const std::vector<int>& usable_gpus() {
  static const Usable& found = *new Usable(find_usable());
  if (found.gpus.empty()) {
    throw Error(found.error.empty() ? "which has no device on this machine" : found.error);
  }
  return found.gpus;
}

}  // namespace hologram::cuda
