// Philox, what is drawn from it, and the state of a generator.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "atlas/device.h"
#include "atlas/philox.h"
#include "atlas/random.h"
#include "check.h"
#include "groups.h"
#include "threads.h"

using namespace hologram;
using namespace hologram::test;

namespace {

// So many draws from element 0 on, on each instruction set the same.
template <class T>
std::vector<T> drawn(Draw draw, DType dtype, size_t count, uint64_t range = 0) {
  Builder b(compute_type_of(dtype));
  b.store(b.draw(draw, dtype), b.operand(b.own()));
  const uint64_t immediates[] = {kDefaultSeed, 0xfffffff8u, range};
  std::vector<T> first;
  for (const Isa isa : sets()) {
    std::vector<T> out(count);
    void* const pointers[] = {out.data()};
    Binding binding;
    binding.operands = pointers;
    binding.immediates = immediates;
    binding.count = static_cast<int64_t>(count);
    cpu::run(*compile(b.group, isa), binding);
    if (first.empty()) first = out;
    CHECK(std::memcmp(first.data(), out.data(), count * sizeof(T)) == 0);
  }
  return first;
}

}  // namespace

// Of Random123's kat_vectors, published with the paper.
TEST(philox_known_answers) {
  using Words = Philox::Words;
  constexpr uint32_t kAll = 0xffffffffu;
  CHECK((Philox::block({0, 0}, Words{0, 0, 0, 0}) ==
         Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  CHECK((Philox::block({kAll, kAll}, Words{kAll, kAll, kAll, kAll}) ==
         Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  CHECK((Philox::block({0xa4093822u, 0x299f31d0u},
                       Words{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}) ==
         Words{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
  CHECK(Philox::block(0, 0) == Philox::block({0, 0}, Words{0, 0, 0, 0}));
}

TEST(random_uniform_is_below_one_and_has_the_digits_of_its_dtype) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    double sum = 0, most = 0, least = 1;
    const auto numbers = drawn<float>(Draw::uniform, dtype, 100'000);
    for (const float x : numbers) {
      const double scaled = std::ldexp(x, digits_of(dtype));
      CHECK(scaled == std::floor(scaled));
      sum += static_cast<double>(x);
      most = std::max(most, static_cast<double>(x)),
      least = std::min(least, static_cast<double>(x));
    }
    CHECK(least >= 0 && least < 0.01 && most < 1 && most > 0.99);
    CHECK(std::abs(sum / 1e5 - (1 - std::ldexp(1.0, -digits_of(dtype))) / 2) < 0.003);
  }
  for (const double x : drawn<double>(Draw::uniform, DType::f64, 10'000)) CHECK(x >= 0 && x < 1);
}

// Against the transform in float64: 4 units in the last place, or of the angle where the product is
// smaller than its factors.
TEST(random_normal_is_box_and_mullers_transform) {
  const size_t count = 200'000;
  const auto numbers = drawn<float>(Draw::normal, DType::f32, count);
  double worst = 0, sum = 0, squares = 0;
  for (size_t i = 0; i < count; ++i) {
    const Philox::Words words = Philox::block(kDefaultSeed, 0xfffffff8u + i / 4);
    const size_t pair = i % 4 / 2 * 2;
    const double u = static_cast<double>(static_cast<float>(
        (static_cast<double>(static_cast<float>(words[pair] >> 1)) + 0.5) * 0x1p-31));
    const double angle = static_cast<double>(words[pair + 1]) * 0x1p-32 * (2 * M_PI);
    const double radius = std::sqrt(-2 * std::log(u));
    const double wanted = radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
    const double unit = std::max(std::abs(wanted), radius * 0x1p-10) * 0x1p-23;
    worst = std::max(worst, std::abs(static_cast<double>(numbers[i]) - wanted) / unit);
    sum += wanted, squares += wanted * wanted;
  }
  CHECK(worst < 4);
  CHECK(std::abs(sum / count) < 0.01 && std::abs(squares / count - 1) < 0.02);
}

TEST(random_integers_are_below_their_range) {
  for (const uint64_t range : {uint64_t{1}, uint64_t{10}, uint64_t{1} << 31, uint64_t{1} << 32}) {
    std::vector<int64_t> counts(10);
    for (const int64_t x : drawn<int64_t>(Draw::integer, DType::i64, 100'000, range)) {
      CHECK(x >= 0 && static_cast<uint64_t>(x) < range);
      ++counts[static_cast<size_t>(static_cast<double>(x) / static_cast<double>(range) * 10)];
    }
    for (size_t i = 0; range != 1 && i < counts.size(); ++i)
      CHECK(std::abs(counts[i] - 10'000) < 400);
  }
  const uint64_t range = (uint64_t{3} << 61) + 12345;
  for (const int64_t x : drawn<int64_t>(Draw::long_integer, DType::i64, 10'000, range)) {
    CHECK(static_cast<uint64_t>(x) < range);
  }
}

TEST(random_source_takes_counters) {
  RandomSource source{RandomState{7}};
  CHECK(source.reserve(3).offset == 0);
  const RandomState taken = source.reserve(2);
  CHECK(taken.seed == 7 && taken.offset == 3);
  CHECK(source.state().offset == 5);
  source.set_state({9, 1});
  CHECK(source.reserve(1).seed == 9);
  CHECK(source.state().offset == 2);
}

TEST(random_default_source_belongs_to_a_device_and_makes_none) {
  CHECK_THROWS(default_random_source(device_count()), InvalidDevice, "out of range");
  RandomSource& source = default_random_source(0);
  CHECK(&source == &default_random_source(0));
  CHECK(source.state().seed == kDefaultSeed);
}
