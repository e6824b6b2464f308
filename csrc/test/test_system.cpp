#include "cpu/system.h"

#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "atlas/error.h"
#include "check.h"
#include "cpu/backend.h"
#include "cpu/memory.h"

using namespace hologram;

TEST(system_facts_are_plausible) {
  const size_t physical =
      static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  CHECK(cpu::total_memory() > size_t{16} << 20);
  CHECK(cpu::total_memory() <= physical);
  CHECK(cpu::available_memory() > 0);
  CHECK(cpu::available_memory() <= cpu::total_memory());
  CHECK(cpu::usable_cores() >= 1);
  CHECK(cpu::usable_cores() <= sysconf(_SC_NPROCESSORS_CONF));
}

TEST(system_instruction_set_can_be_chosen) {
  CHECK(cpu::choose_isa("baseline") == cpu::Isa::baseline);
  CHECK(cpu::processor_isas().front() == cpu::Isa::baseline);
  CHECK(cpu::processor_isas().back() == cpu::choose_isa(""));
  CHECK_THROWS(cpu::choose_isa("sse9"), Error, "HOLOGRAM_CPU_ISA is 'sse9'");
#if defined(__x86_64__)
  CHECK_THROWS(cpu::choose_isa("neon"), Error, "of this processor are: baseline");
#endif
  CHECK_EQ(check::run_again("isa_is_the_baseline", {"HOLOGRAM_CPU_ISA=baseline"}), "exit 0");
  CHECK_EQ(check::run_again("isa_is_refused", {"HOLOGRAM_CPU_ISA=AVX2"}), "exit 0");
}

SUBPROCESS_TEST(isa_is_the_baseline) {
  CHECK(cpu::best_isa() == cpu::Isa::baseline);
}

SUBPROCESS_TEST(isa_is_refused) {
  CHECK_THROWS(cpu::best_isa(), Error, "AVX2");
  CHECK_THROWS(cpu::best_isa(), Error, "AVX2");
}

TEST(system_segments_are_aligned_and_zero) {
  for (const size_t bytes :
       {size_t{1}, size_t{4096}, size_t{655'360}, size_t{1} << 20, size_t{3} << 20}) {
    char* data = static_cast<char*>(cpu::map_memory(bytes));
    CHECK(data != nullptr);
    const size_t alignment = bytes >= size_t{2} << 20 ? size_t{2} << 20 : size_t{1} << 20;
    CHECK_EQ(reinterpret_cast<uintptr_t>(data) % alignment, 0u);
    CHECK_EQ(data[0], 0);
    CHECK_EQ(data[bytes - 1], 0);
    std::memset(data, 1, bytes);
    cpu::unmap_memory(data, bytes);
  }
}

TEST(system_refuses_impossible_segments) {
  CHECK_EQ(cpu::map_memory(0), nullptr);
  CHECK_EQ(cpu::map_memory(SIZE_MAX), nullptr);
  CHECK_EQ(cpu::map_memory(SIZE_MAX - (size_t{4} << 20)), nullptr);
  CHECK_EQ(cpu::map_memory(size_t{1} << 60), nullptr);
  cpu::unmap_memory(nullptr, 4096);
}

TEST(system_backend_shares_the_machine) {
  const cpu::CpuBackend whole(0, 1), half(1, 2);
  CHECK_EQ(half.properties().total_memory, whole.properties().total_memory / 2);
  CHECK(half.properties().multi_processor_count <= whole.properties().multi_processor_count);
  CHECK(half.properties().multi_processor_count >= 1);
  CHECK_EQ(half.properties().name, whole.properties().name + " (2 of 2 parts)");
  CHECK(half.available_memory() <= half.properties().total_memory);
}
