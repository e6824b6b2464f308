// The random numbers of a device: their state in no backend's terms, and who draws them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

namespace hologram {

// MT19937 of Matsumoto and Nishimura (ACM TOMACS 8(1), 1998), as far as it has been drawn from.
struct RandomState {
  static constexpr size_t kWords = 624;

  // The start of the sequence that belongs to the low 32 bits of the seed.
  explicit RandomState(uint64_t seed);

  uint64_t seed;
  std::array<uint32_t, kWords> words;
  uint32_t next = 0;  // the word to draw next
  uint32_t left = 1;  // draws until all words are made anew, that one included
  // Normal numbers are made in pairs: the second one of a pair, until it is drawn.
  std::optional<float> float_normal;
  std::optional<double> double_normal;
};

// What a generator draws from. The numbers come from engines (torch's CPU generator is one), and
// one of them has the state at a time.
class RandomSource {
 public:
  class Engine {
   public:
    virtual void load(const RandomState& state) = 0;
    virtual void save(RandomState& state) const = 0;

   protected:
    ~Engine() = default;
  };

  explicit RandomSource(const RandomState& state) : state_(state) {}

  // From the return on `engine` continues the sequence, until it is lent to another one. Engines
  // must not draw at the same time.
  void lend(Engine& engine);

  // The state as of now; the engine that has it keeps it.
  RandomState state();

 private:
  std::mutex mutex_;
  RandomState state_;
  Engine* engine_ = nullptr;  // that has the state; null: it is here
};

// The seed of a generator that was never seeded: torch's.
inline constexpr uint64_t kDefaultSeed = 67280421310721;

}  // namespace hologram
