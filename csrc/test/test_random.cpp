// The state of a generator, and who has it.
#include <cstdint>
#include <random>

#include "atlas/device.h"
#include "atlas/random.h"
#include "check.h"

using namespace hologram;

namespace {

// Counts its draws in the state.
class Counting final : public RandomSource::Engine {
 public:
  void load(const RandomState& state) override {
    state_ = state;
    ++loads;
  }
  void save(RandomState& state) const override { state = state_; }
  void draw() { ++state_.next; }
  const RandomState& state() const { return state_; }
  int loads = 0;

 private:
  RandomState state_{0};
};

}  // namespace

TEST(random_state_starts_as_the_standard_library_does) {
  for (const uint64_t seed : {uint64_t{0}, uint64_t{5489}, kDefaultSeed, ~uint64_t{0}}) {
    const RandomState state(seed);
    std::mt19937 engine(static_cast<uint32_t>(seed));
    CHECK(state.seed == seed);
    // The first draw makes all words anew: word 0 of 0, 1 and 397.
    const uint32_t mixed = (state.words[0] & 0x80000000u) | (state.words[1] & 0x7fffffffu);
    uint32_t y = state.words[397] ^ (mixed >> 1) ^ ((state.words[1] & 1) ? 0x9908b0dfu : 0);
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    y ^= y >> 18;
    CHECK(y == engine());
  }
}

TEST(random_source_moves_with_its_state_from_engine_to_engine) {
  RandomSource source{RandomState(7)};
  Counting first, second;
  source.lend(first);
  first.draw();
  source.lend(first);  // has it already
  CHECK(first.loads == 1);
  CHECK(source.state().next == 1);
  first.draw();
  source.lend(second);
  CHECK(second.state().next == 2);
  CHECK(second.state().seed == 7);
  second.draw();
  CHECK(source.state().next == 3);
  source.lend(first);
  CHECK(first.state().next == 3);
  CHECK(first.loads == 2);
}

TEST(random_default_source_belongs_to_a_device_and_makes_none) {
  CHECK_THROWS(default_random_source(device_count()), InvalidDevice, "out of range");
  RandomSource& source = default_random_source(0);
  CHECK(&source == &default_random_source(0));
  CHECK(source.state().seed == kDefaultSeed);
}
