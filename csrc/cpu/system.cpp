#include "cpu/system.h"

#if defined(__APPLE__)
#include <mach/mach.h>
#include <sys/sysctl.h>
#else
#include <sched.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "atlas/error.h"

namespace hologram::cpu {
namespace {

#if defined(__APPLE__)

// A number of the system's, of four bytes or eight; 0 if it has none of this name.
size_t system_number(const char* name) noexcept {
  uint64_t value = 0;  // of four bytes it is the lower half: all processors are little-endian
  size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 ? static_cast<size_t>(value) : 0;
}

size_t physical_memory() noexcept {
  return system_number("hw.memsize");
}

#else

constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

// The number that follows `key` in a file of "key value" lines, e.g. "MemTotal:"; `missing` if
// there is none.
size_t read_field(const std::string& path, std::string_view key, size_t missing) {
  std::ifstream file(path);
  std::string word;
  size_t value;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    return std::sscanf(line.c_str() + key.size(), "%zu", &value) == 1 ? value : missing;
  }
  return missing;
}

// The number a file consists of; `missing` if it is absent or a word such as "max".
size_t read_number(const std::string& path, size_t missing) {
  return read_field(path, "", missing);
}

// A control group that may limit our memory, with the names its version gives the files.
struct ControlGroup {
  std::string folder;
  const char* limit;
  const char* usage;
  const char* inactive_file;  // line of memory.stat: cached file pages that can be dropped

  size_t limit_bytes() const { return read_number(folder + limit, kUnlimited); }

  // Bytes that can still be used inside the group.
  size_t available_bytes() const {
    const size_t cap = limit_bytes();
    const size_t usage_now = read_number(folder + usage, 0);
    const size_t droppable = read_field(folder + "memory.stat", inactive_file, 0);
    const size_t used = usage_now - std::min(usage_now, droppable);
    return cap - std::min(cap, used);
  }
};

// Our groups and all their ancestors: each of them limits us. In a container the paths of
// /proc/self/cgroup may be the host's, hence the mount points themselves are looked at as well.
std::vector<ControlGroup> find_control_groups() {
  std::vector<ControlGroup> groups;
  const auto add = [&](const std::string& mount, std::string path, bool v2) {
    while (true) {
      const std::string folder = mount + path + (path.ends_with('/') ? "" : "/");
      const ControlGroup group =
          v2 ? ControlGroup{folder, "memory.max", "memory.current", "inactive_file "}
             : ControlGroup{folder, "memory.limit_in_bytes", "memory.usage_in_bytes",
                            "total_inactive_file "};
      if (group.limit_bytes() != kUnlimited) groups.push_back(group);
      if (path.empty() || path == "/") return;
      path.resize(path.rfind('/'));
    }
  };
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    // "0::/path" (version 2) or "9:memory:/path" (version 1)
    const size_t path = line.find(":/");
    if (path == std::string::npos) continue;
    if (line.starts_with("0::")) {
      add("/sys/fs/cgroup", line.substr(path + 1), true);
    } else if (line.find(":memory:") != std::string::npos) {
      add("/sys/fs/cgroup/memory", line.substr(path + 1), false);
    }
  }
  return groups;
}

const std::vector<ControlGroup>& control_groups() {
  static const auto& groups = *new std::vector<ControlGroup>(find_control_groups());
  return groups;
}

size_t physical_memory() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

#endif

}  // namespace

std::vector<Isa> processor_isas() {
#if defined(__x86_64__)
  std::vector<Isa> sets = {Isa::baseline};
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("f16c")) {
    return sets;
  }
  sets.push_back(Isa::avx2);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    sets.push_back(Isa::avx512);
  }
  return sets;
#elif defined(__aarch64__)
  return {Isa::baseline, Isa::neon};
#else
  return {Isa::baseline};
#endif
}

Isa best_isa() {
  static const Isa best = [] {
    const char* wanted = std::getenv("HOLOGRAM_CPU_ISA");
    return choose_isa(wanted == nullptr ? "" : wanted);
  }();
  return best;
}

Isa choose_isa(std::string_view wanted) {
  const std::vector<Isa> sets = processor_isas();
  if (wanted.empty()) return sets.back();
  std::string names;
  for (const Isa isa : sets) {
    if (wanted == isa_name(isa)) return isa;
    names += std::string(names.empty() ? "" : ", ") + isa_name(isa);
  }
  throw Error("HOLOGRAM_CPU_ISA is '" + std::string(wanted) +
              "', but the instruction sets of this processor are: " + names);
}

const char* isa_name(Isa isa) noexcept {
  switch (isa) {
    case Isa::avx512: return "avx512";
    case Isa::avx2: return "avx2";
    case Isa::neon: return "neon";
    case Isa::baseline: break;
  }
  return "baseline";
}

#if defined(__APPLE__)

std::string processor_name() {
  size_t size = 0;
  const char* const name = "machdep.cpu.brand_string";
  if (sysctlbyname(name, nullptr, &size, nullptr, 0) != 0 || size < 2) return "CPU";
  std::string text(size, '\0');
  if (sysctlbyname(name, text.data(), &size, nullptr, 0) != 0) return "CPU";
  return text.c_str();  // up to its zero
}

// The fast ones where there are slow ones too: work in equal parts takes as long as on the slowest.
// Threads are not bound to cores.
int usable_cores() noexcept {
  const size_t fast = system_number("hw.perflevel0.logicalcpu");
  if (fast > 0) return static_cast<int>(fast);
  return std::max(static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)), 1);
}

size_t l2_cache_size() noexcept {
  const size_t shared = system_number("hw.perflevel0.l2cachesize");
  const size_t cores = system_number("hw.perflevel0.cpusperl2");
  if (shared > 0 && cores > 0) return shared / cores;
  return system_number("hw.l2cachesize");
}

size_t total_memory() noexcept {
  return physical_memory();
}

// Pages that are free, and those that have not been used for long.
size_t available_memory() noexcept {
  vm_statistics64_data_t pages{};
  mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
  const mach_port_t host = mach_host_self();
  const kern_return_t status =
      host_statistics64(host, HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&pages), &count);
  mach_port_deallocate(mach_task_self(), host);  // mach_host_self() has added a reference
  if (status != KERN_SUCCESS) return physical_memory();
  const size_t available = size_t{pages.free_count} + pages.inactive_count;
  return std::min(available * vm_kernel_page_size, physical_memory());
}

#else

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

int usable_cores() noexcept {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(CPU_COUNT(&set), 1);
#endif
  return std::max(static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)), 1);
}

size_t l2_cache_size() noexcept {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  return static_cast<size_t>(std::max(sysconf(_SC_LEVEL2_CACHE_SIZE), 0L));
#else
  return 0;
#endif
}

size_t total_memory() noexcept {
  size_t bytes = physical_memory();
  for (const ControlGroup& group : control_groups()) bytes = std::min(bytes, group.limit_bytes());
  return bytes;
}

size_t available_memory() noexcept {
  const size_t kib = read_field("/proc/meminfo", "MemAvailable:", kUnlimited / 1024);
  size_t bytes = std::min(kib * 1024, physical_memory());
  for (const ControlGroup& group : control_groups()) {
    bytes = std::min(bytes, group.available_bytes());
  }
  return bytes;
}

#endif

}  // namespace hologram::cpu
