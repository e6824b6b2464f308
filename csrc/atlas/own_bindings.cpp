#include "atlas/own_bindings.h"

#include <cstddef>

namespace hologram {

OwnBindings::OwnBindings(const Group& group, std::span<const Binding> source)
    : bindings_(source.begin(), source.end()) {
  const size_t operands = group.operands.size();
  const auto immediates = static_cast<size_t>(group.immediates);
  for (const Binding& binding : source) {
    const auto rank = static_cast<size_t>(binding.rank);
    operands_.insert(operands_.end(), binding.operands, binding.operands + operands);
    immediates_.insert(immediates_.end(), binding.immediates, binding.immediates + immediates);
    if (rank == 0) continue;
    numbers_.insert(numbers_.end(), binding.sizes, binding.sizes + rank);
    numbers_.insert(numbers_.end(), binding.strides, binding.strides + rank * operands);
  }
  // Only now they have stopped moving.
  size_t number = 0;
  for (size_t i = 0; i < bindings_.size(); ++i) {
    Binding& binding = bindings_[i];
    const auto rank = static_cast<size_t>(binding.rank);
    binding.operands = operands_.data() + i * operands;
    binding.immediates = immediates_.data() + i * immediates;
    if (rank == 0) continue;
    binding.sizes = numbers_.data() + number;
    binding.strides = binding.sizes + rank;
    number += rank * (1 + operands);
  }
}

}  // namespace hologram
