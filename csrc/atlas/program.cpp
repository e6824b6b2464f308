#include "atlas/program.h"

#include <cstring>

namespace hologram {
namespace {

template <class T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) noexcept {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Multiply and fold, eight bytes at a time. Equal programs are compared byte by byte, so the hash
// only has to spread.
template <class T>
uint64_t mix(uint64_t hash, const std::vector<T>& items) noexcept {
  const auto* bytes = reinterpret_cast<const unsigned char*>(items.data());
  size_t left = items.size() * sizeof(T);
  hash ^= left;
  while (left != 0) {
    uint64_t word = 0;
    const size_t taken = left < sizeof word ? left : sizeof word;
    std::memcpy(&word, bytes, taken);
    const auto product = static_cast<unsigned __int128>(hash ^ word) * 0x9e3779b97f4a7c15u;
    hash = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    bytes += taken;
    left -= taken;
  }
  return hash;
}

}  // namespace

void Program::clear() noexcept {
  code.clear();
  accesses.clear();
  overlaps.clear();
  specials.clear();
  slots.clear();
  offsets.clear();
  immediates.clear();
  counts.clear();
  blocks.clear();
  shapes.clear();
  strides.clear();
}

bool Program::same_key(const Program& other) const noexcept {
  return same_bytes(code, other.code) && same_bytes(accesses, other.accesses) &&
         same_bytes(overlaps, other.overlaps) && same_bytes(specials, other.specials) &&
         same_bytes(slots, other.slots);
}

uint64_t Program::hash() const noexcept {
  uint64_t hash = 0x51ed270b7a1f3c5du;
  hash = mix(hash, code);
  hash = mix(hash, accesses);
  hash = mix(hash, overlaps);
  hash = mix(hash, specials);
  return mix(hash, slots);
}

const char* code_name(Code code) noexcept {
  return code == kCopy ? "copy" : op_info(static_cast<Op>(code)).name;
}

std::string to_string(const Program& program) {
  std::string text;
  const auto access = [&](uint16_t index) {
    const AccessKey& key = program.accesses[index];
    std::string name = "b" + std::to_string(key.slot);
    if (program.offsets[index] != 0) name += "+" + std::to_string(program.offsets[index]);
    name += std::string(":") + dtype_name(key.dtype);
    if (key.layout == Layout::scalar) name += " scalar";
    if (key.layout == Layout::strided) name += " strided";
    return name;
  };
  for (const Instruction& instruction : program.code) {
    text += access(instruction.out) + " = ";
    text += instruction.code == kCopy ? "copy" : op_info(static_cast<Op>(instruction.code)).name;
    text += std::string(".") + dtype_name(instruction.dtype) + "(";
    for (int i = 0; i < instruction.arity; ++i) {
      const Source source = instruction.in[static_cast<size_t>(i)];
      if (i != 0) text += ", ";
      text +=
          (source & kImmediate) != 0 ? "#" + std::to_string(source & ~kImmediate) : access(source);
    }
    text += ")\n";
  }
  return text;
}

}  // namespace hologram
