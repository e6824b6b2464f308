#include "atlas/config.h"

#include "atlas/backends.h"
#include "atlas/error.h"
#include "check.h"

using hologram::Config;
using hologram::parse_config;

TEST(config_defaults) {
  const auto none = [](std::string_view) -> int { throw hologram::Error("which is elsewhere"); };
  const Config config = parse_config(std::nullopt, "", "", "", none);
  CHECK_EQ(config.error, "");
  CHECK_EQ(config.warning, "");
  CHECK_EQ(config.absent, "'cuda', which is elsewhere");
  CHECK_EQ(config.devices.size(), 1u);
  CHECK_EQ(config.devices[0].backend, "cpu");
  CHECK_EQ(config.memory_limit, 0u);
}

TEST(config_has_the_gpus_before_the_cpu) {
  const auto two = [](std::string_view) { return 2; };
  const Config config = parse_config(std::nullopt, "", "", "", two);
  CHECK_EQ(config.devices.size(), 3u);
  CHECK(config.devices[1].backend == "cuda" && config.devices[1].ordinal == 1);
  CHECK_EQ(config.devices[2].backend, "cpu");
  CHECK_EQ(config.absent, "");
}

TEST(config_without_backends_has_no_devices) {
  for (const char* nothing : {"", "  "}) {
    const Config config = parse_config(nothing, "3", "");
    CHECK_EQ(config.error, "");
    CHECK_EQ(config.devices.size(), 0u);
  }
}

TEST(config_splits_the_cpu_into_devices) {
  const Config config = parse_config(" cpu ", "3", "");
  CHECK_EQ(config.error, "");
  CHECK_EQ(config.devices.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    CHECK_EQ(config.devices[static_cast<size_t>(i)].ordinal, i);
    CHECK_EQ(config.devices[static_cast<size_t>(i)].count, 3);
  }
}

TEST(config_reads_sizes_with_suffixes) {
  CHECK_EQ(parse_config(std::nullopt, "", "1000").memory_limit, 1000u);
  CHECK_EQ(parse_config(std::nullopt, "", "3k").memory_limit, 3u << 10);
  CHECK_EQ(parse_config(std::nullopt, "", "512M").memory_limit, 512u << 20);
  CHECK_EQ(parse_config(std::nullopt, "", " 2G ").memory_limit, size_t{2} << 30);
  CHECK_EQ(parse_config(std::nullopt, "", "1t").memory_limit, size_t{1} << 40);
}

TEST(config_describes_wrong_values) {
  for (const char* wrong :
       {"0", "-1", "G", "1.5G", "12X", "1GG", "99999999999999999999", "18446744073709551615K"}) {
    const Config config = parse_config(std::nullopt, "", wrong);
    CHECK_EQ(config.memory_limit, 0u);
    CHECK(config.error.find("HOLOGRAM_MEMORY_LIMIT") != std::string::npos);
    CHECK(config.error.find("'" + std::string(wrong) + "'") != std::string::npos);
  }
  for (const char* wrong : {"0", "65", "-1", "two", "1 2"}) {
    const Config config = parse_config(std::nullopt, wrong, "");
    CHECK_EQ(config.devices.size(), 1u);
    CHECK(config.error.find("HOLOGRAM_CPU_DEVICES") != std::string::npos);
    CHECK(config.error.find("'" + std::string(wrong) + "'") != std::string::npos);
  }
}

TEST(config_reads_eager) {
  CHECK(!parse_config(std::nullopt, "", "", "").eager);
  CHECK(!parse_config(std::nullopt, "", "", "0").eager);
  CHECK(parse_config(std::nullopt, "", "", " 1 ").eager);
  for (const char* wrong : {"yes", "2", "true", "01"}) {
    const Config config = parse_config(std::nullopt, "", "", wrong);
    CHECK(!config.eager);
    CHECK_EQ(config.error, "HOLOGRAM_EAGER must be 0 or 1, not '" + std::string(wrong) + "'");
  }
}

TEST(config_names_backends_it_does_not_have) {
  const Config mixed = parse_config("abacus, cpu", "", "");
  CHECK_EQ(mixed.devices.size(), 1u);
  CHECK_EQ(mixed.error, "");  // there is a device, if not the first one asked for
#if defined(__APPLE__)
  const std::string file = "libhologram_abacus.dylib";
#else
  const std::string file = "libhologram_abacus.so";
#endif
  CHECK_EQ(mixed.warning,
           "HOLOGRAM_BACKENDS names 'abacus', which this build does not have (available: " +
               std::string(hologram::kBackendsOfBuild) + "); " + file +
               " is in no folder of HOLOGRAM_BACKEND_PATH (which is not set)");

  const Config none = parse_config("abacus", "", "");
  CHECK_EQ(none.devices.size(), 0u);
  CHECK_EQ(none.error, mixed.warning);
  CHECK_EQ(none.warning, "");
  CHECK(parse_config("cpu,", "", "").error.find("ends with a comma") != std::string::npos);
  CHECK(parse_config(",cpu", "", "").warning.find("''") != std::string::npos);
  CHECK(parse_config("cpu,cpu", "", "").error.find("twice") != std::string::npos);

  const Config both = parse_config("abacus", "0", "");
  CHECK(both.error.find("'abacus'") != std::string::npos);
  CHECK(both.error.find("HOLOGRAM_CPU_DEVICES") != std::string::npos);
}

#if defined(HOLOGRAM_WITHOUT_GPUS)
TEST(config_says_that_there_is_no_cuda) {
  const Config config = parse_config("cuda", "", "");
  CHECK_EQ(config.devices.size(), 0u);
  CHECK(config.error.starts_with("HOLOGRAM_BACKENDS names 'cuda', which this build does not have"));
  CHECK_EQ(parse_config("cuda,cpu", "", "").devices.size(), 1u);
}
#endif

TEST(config_counts_the_devices_of_libraries) {
  const auto count = [](std::string_view name) -> int {
    if (name == "abacus") return 3;
    throw hologram::Error("which is " + std::string(name));
  };
  const Config config = parse_config("abacus, cpu, slide", "2", "", "", count);
  CHECK_EQ(config.devices.size(), 5u);
  CHECK(config.devices[2].backend == "abacus" && config.devices[2].ordinal == 2);
  CHECK(config.devices[3].backend == "cpu" && config.devices[3].count == 2);
  CHECK_EQ(config.error, "");
  CHECK_EQ(config.warning, "HOLOGRAM_BACKENDS names 'slide', which is slide");
  CHECK(parse_config("abacus,abacus", "", "", "", count).error.find("twice") != std::string::npos);
}
