#include "atlas/random.h"

namespace hologram {

RandomState::RandomState(uint64_t given) : seed(given) {
  words[0] = static_cast<uint32_t>(given);
  for (uint32_t i = 1; i < kWords; ++i) {
    words[i] = 1812433253u * (words[i - 1] ^ (words[i - 1] >> 30)) + i;
  }
}

void RandomSource::lend(Engine& engine) {
  const std::lock_guard guard(mutex_);
  if (engine_ == &engine) return;
  if (engine_ != nullptr) engine_->save(state_);
  engine.load(state_);
  engine_ = &engine;
}

RandomState RandomSource::state() {
  const std::lock_guard guard(mutex_);
  if (engine_ != nullptr) engine_->save(state_);
  return state_;
}

}  // namespace hologram
