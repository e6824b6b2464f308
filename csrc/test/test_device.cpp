#include "atlas/backends.h"
#include "atlas/config.h"
#include "atlas/device.h"

#include <set>
#include <thread>

#include "check.h"
#include "cpu/system.h"

using namespace hologram;

TEST(device_count_is_one_by_default) {
  CHECK_EQ(device_count(), 1);
}

TEST(device_properties_describe_this_machine) {
  const DeviceProperties& properties = device(0).properties();
  CHECK_EQ(properties.backend, "cpu");
  CHECK(!properties.name.empty());
  CHECK(properties.total_memory > 0);
  CHECK(properties.multi_processor_count >= 1);
  CHECK((std::set<std::string>{"avx512", "avx2", "baseline", "neon"}.contains(properties.isa)));
  CHECK_EQ(device(0).memory().limit(), properties.total_memory);
  CHECK_EQ(device(0).index(), 0);
  device(0).synchronize();
}

TEST(device_is_one_object) {
  CHECK_EQ(&device(0), &device(0));
  CHECK_EQ(device_if_used(0), &device(0));
  CHECK_EQ(device_if_used(1), nullptr);
  CHECK_EQ(device_if_used(-1), nullptr);
  CHECK_EQ(device_if_used(kMaxDevices), nullptr);
}

TEST(device_index_out_of_range) {
  CHECK_THROWS(device(7), InvalidDevice,
               "hologram device index 7 is out of range: 1 device(s) available");
  CHECK_THROWS(device(-1), InvalidDevice, "hologram device index -1 is out of range");
  CHECK_THROWS(device(kMaxDevices), InvalidDevice, "index 128 is out of range");
  CHECK_THROWS(set_current_device(1), InvalidDevice, "index 1 is out of range");
  CHECK_THROWS(exchange_current_device(-2), InvalidDevice, "index -2 is out of range");
  CHECK_EQ(current_device(), 0);
}

TEST(device_memory_is_accounted_by_its_pool) {
  MemoryPool& memory = device(0).memory();
  const int64_t before = memory.stats().allocated_bytes.current;
  const Allocation block = memory.allocate(10'000'000);
  std::memset(block.data, 1, block.capacity);
  CHECK_EQ(reinterpret_cast<uintptr_t>(block.data) % (2 << 20), 0u);
  CHECK_EQ(memory.stats().allocated_bytes.current - before, block.capacity);
  memory.deallocate(block);
  const auto [free, total] = memory.info();
  CHECK(free > 0 && free <= total);
  CHECK_EQ(total, device(0).properties().total_memory);
}

TEST(device_threads_make_it_once) {
  std::vector<std::thread> threads;
  std::atomic<int> same{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] { same += &device(0) == device_if_used(0) ? 1 : 0; });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(same.load(), 8);
}

SUBPROCESS_TEST(with_three_devices) {
  CHECK_EQ(device_count(), 3);
  CHECK_THROWS(device(3), InvalidDevice, "index 3 is out of range: 3 device(s) available");
  CHECK(&device(0) != &device(2));
  CHECK(device(0).properties().name != device(2).properties().name);
  CHECK_EQ(device(1).properties().total_memory, cpu::total_memory() / 3);
  CHECK_EQ(device(2).memory().limit(), size_t{64} << 20);

  CHECK_EQ(exchange_current_device(2), 0);
  CHECK_EQ(current_device(), 2);
  int elsewhere = -1;
  std::thread([&] { elsewhere = current_device(); }).join();
  CHECK_EQ(elsewhere, 0);

  // Pools and current streams are independent.
  const Allocation block = device(1).memory().allocate(100);
  CHECK(device(1).memory().owns(block.data));
  CHECK(!device(2).memory().owns(block.data));
  CHECK_EQ(device(2).memory().stats().allocation.current, 0);
  device(1).memory().deallocate(block);
  const StreamId stream = device(1).streams().create(0);
  exchange_current_stream(1, stream);
  CHECK_EQ(current_stream(1), stream);
  CHECK_EQ(current_stream(2), kDefaultStream);
  CHECK_THROWS(exchange_current_stream(2, stream), Error, "hologram:2 has no stream");
}

TEST(device_environment_makes_several) {
  CHECK_EQ(check::run_again("with_three_devices",
                            {"HOLOGRAM_CPU_DEVICES=3", "HOLOGRAM_MEMORY_LIMIT=64M"}),
           "exit 0");
}

SUBPROCESS_TEST(with_wrong_environment) {
  CHECK_EQ(device_count(), 0);  // does not throw
  CHECK_EQ(current_device(), 0);
  CHECK_THROWS(device(0), Error, "HOLOGRAM_BACKENDS names 'abacus'");
  CHECK_THROWS(set_current_device(0), Error, "HOLOGRAM_BACKENDS names 'abacus'");
  CHECK_THROWS(device(0), Error, ("available: " + std::string(kBackendsOfBuild)).c_str());
}

TEST(device_environment_errors_appear_at_first_use) {
  CHECK_EQ(check::run_again("with_wrong_environment", {"HOLOGRAM_BACKENDS=abacus"}), "exit 0");
}

SUBPROCESS_TEST(with_an_unknown_backend_first) {
  CHECK_EQ(device_count(), 1);
  CHECK_EQ(device(0).properties().backend, "cpu");
  CHECK(config().warning.find("'abacus'") != std::string::npos);
}

TEST(device_list_goes_on_without_unknown_backends) {
  CHECK_EQ(check::run_again("with_an_unknown_backend_first", {"HOLOGRAM_BACKENDS=abacus,cpu"}),
           "exit 0");
}

SUBPROCESS_TEST(with_a_wrong_isa) {
  CHECK_EQ(device_count(), 0);
  CHECK_THROWS(device(0), Error, "HOLOGRAM_CPU_ISA is 'sse', but the instruction sets of this");
}

TEST(device_environment_includes_the_backend_s) {
  CHECK_EQ(check::run_again("with_a_wrong_isa", {"HOLOGRAM_CPU_ISA=sse"}), "exit 0");
}

SUBPROCESS_TEST(without_backends) {
  CHECK_EQ(device_count(), 0);
  CHECK_THROWS(check_any_device(), Error, "HOLOGRAM_BACKENDS is empty");
  CHECK_THROWS(device(0), Error, "no hologram device is available");
  CHECK_EQ(device_if_used(0), nullptr);
}

TEST(device_list_may_be_empty) {
  CHECK_EQ(check::run_again("without_backends", {"HOLOGRAM_BACKENDS="}), "exit 0");
}

SUBPROCESS_TEST(with_more_devices_than_cores) {
  CHECK_EQ(device_count(), 64);
  for (int index = 0; index < device_count(); ++index) {
    CHECK(device(index).properties().multi_processor_count >= 1);
    const Allocation block = device(index).memory().allocate(256);
    CHECK(device(index).memory().owns(block.data));
    device(index).memory().deallocate(block);
  }
}

TEST(device_count_may_exceed_the_cores) {
  CHECK_EQ(check::run_again("with_more_devices_than_cores", {"HOLOGRAM_CPU_DEVICES=64"}), "exit 0");
}
