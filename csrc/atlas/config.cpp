#include "atlas/config.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>

#include "atlas/error.h"

namespace hologram {
namespace {

constexpr int kMaxCpuDevices = 64;
// What is here of these: the GPUs, and the CPU after them.
constexpr std::string_view kDefaultBackends = "cuda,cpu";

std::string_view strip(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// All of `text` as a number, or nothing.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "512M" -> 512 * 2^20. Zero, overflow and anything else: nothing.
std::optional<size_t> parse_bytes(std::string_view text) {
  static constexpr std::string_view kSuffixes = "KMGT";
  int shift = 0;
  if (!text.empty()) {
    const char upper = static_cast<char>(text.back() & ~0x20);
    if (const size_t unit = kSuffixes.find(upper); unit != std::string_view::npos) {
      shift = 10 * (static_cast<int>(unit) + 1);
      text.remove_suffix(1);
    }
  }
  const std::optional<size_t> number = parse_number<size_t>(text);
  if (!number || *number == 0 || *number > (std::numeric_limits<size_t>::max() >> shift)) {
    return std::nullopt;
  }
  return *number << shift;
}

std::string quoted(std::string_view text) {
  return "'" + std::string(text) + "'";
}

void append(std::string& text, const std::string& what) {
  if (!text.empty()) text += "; ";
  text += what;
}

void complain(Config& config, const std::string& what) {
  append(config.error, what);
}

bool parse_switch(Config& config, const std::string& name, std::string_view value) {
  value = strip(value);
  if (!value.empty() && value != "0" && value != "1") {
    complain(config, name + " must be 0 or 1, not " + quoted(value));
  }
  return value == "1";
}

}  // namespace

Config parse_config(std::optional<std::string_view> backends, std::string_view cpu_devices,
                    std::string_view memory_limit, std::string_view eager,
                    CountDevices count_devices) {
  Config config;

  int cpu_count = 1;
  if (cpu_devices = strip(cpu_devices); !cpu_devices.empty()) {
    const std::optional<int> count = parse_number<int>(cpu_devices);
    if (count && *count >= 1 && *count <= kMaxCpuDevices) {
      cpu_count = *count;
    } else {
      complain(config, "HOLOGRAM_CPU_DEVICES must be a number from 1 to " +
                           std::to_string(kMaxCpuDevices) + ", not " + quoted(cpu_devices));
    }
  }

  if (memory_limit = strip(memory_limit); !memory_limit.empty()) {
    if (const std::optional<size_t> bytes = parse_bytes(memory_limit)) {
      config.memory_limit = *bytes;
    } else {
      complain(
          config,
          "HOLOGRAM_MEMORY_LIMIT must be a positive number of bytes with an optional suffix K, "
          "M, G or T, not " +
              quoted(memory_limit));
    }
  }

  config.eager = parse_switch(config, "HOLOGRAM_EAGER", eager);

  std::string missing;
  std::string_view names = strip(backends.value_or(kDefaultBackends));
  while (!names.empty()) {
    const size_t comma = names.find(',');
    const std::string_view name = strip(names.substr(0, comma));
    const bool twice = std::ranges::any_of(
        config.devices, [&](const DeviceSlot& slot) { return slot.backend == name; });
    if (twice) {
      complain(config, "HOLOGRAM_BACKENDS names " + quoted(name) + " twice");
    } else {
      try {
        const int count = name == "cpu" ? cpu_count : count_devices(name);
        for (int i = 0; i < count; ++i) config.devices.push_back({std::string(name), i, count});
      } catch (const std::exception& error) {
        if (backends.has_value()) {
          append(missing, "HOLOGRAM_BACKENDS names " + quoted(name) + ", " + error.what());
        } else {
          append(config.absent, quoted(name) + ", " + error.what());
        }
      }
    }
    if (comma == std::string_view::npos) break;
    names.remove_prefix(comma + 1);
    if (names.empty()) complain(config, "HOLOGRAM_BACKENDS ends with a comma");
  }
  if (!missing.empty()) append(config.devices.empty() ? config.error : config.warning, missing);
  return config;
}

const Config& config() {
  static const Config& instance = *new Config([] {
    const auto variable = [](const char* name) -> std::optional<std::string_view> {
      const char* value = std::getenv(name);
      return value != nullptr ? std::optional<std::string_view>(value) : std::nullopt;
    };
    Config config = parse_config(
        variable("HOLOGRAM_BACKENDS"), variable("HOLOGRAM_CPU_DEVICES").value_or(""),
        variable("HOLOGRAM_MEMORY_LIMIT").value_or(""), variable("HOLOGRAM_EAGER").value_or(""));
    config.poison_freed = parse_switch(config, "HOLOGRAM_POISON_FREED",
                                       variable("HOLOGRAM_POISON_FREED").value_or(""));
    if (!config.devices.empty()) {
      if (const std::string wrong = cpu_backend_error(); !wrong.empty()) complain(config, wrong);
    }
    return config;
  }());
  return instance;
}

}  // namespace hologram
