#include "atlas/program.h"

#include <charconv>
#include <cstring>

#include "atlas/canonicalise.h"

namespace hologram {
namespace {

template <class T>
bool same_bytes(const Column<T>& a, const Column<T>& b) noexcept {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

uint64_t fold(uint64_t a, uint64_t b) noexcept {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Multiply and fold, in two lanes of 16 bytes. Equal programs are compared byte by byte, so the
// hash only has to spread.
template <class T>
uint64_t mix(uint64_t hash, const Column<T>& items) noexcept {
  constexpr uint64_t kOdd[] = {0x9e3779b97f4a7c15u, 0xbf58476d1ce4e5b9u, 0x94d049bb133111ebu,
                               0xd6e8feb86659fd93u};
  const auto* bytes = reinterpret_cast<const unsigned char*>(items.data());
  size_t left = items.size() * sizeof(T);
  uint64_t other = hash ^ left ^ kOdd[0];
  uint64_t words[4];
  for (; left >= sizeof words; left -= sizeof words, bytes += sizeof words) {
    std::memcpy(words, bytes, sizeof words);
    hash = fold(hash ^ words[0] ^ kOdd[0], words[1] ^ kOdd[1]);
    other = fold(other ^ words[2] ^ kOdd[2], words[3] ^ kOdd[3]);
  }
  std::memset(words, 0, sizeof words);
  if (left != 0) std::memcpy(words, bytes, left);
  hash = fold(hash ^ words[0] ^ kOdd[0], words[1] ^ kOdd[1]);
  other = fold(other ^ words[2] ^ kOdd[2], words[3] ^ kOdd[3]);
  return fold(hash ^ kOdd[1], other ^ kOdd[2]);
}

}  // namespace

void Program::clear() noexcept {
  code.clear();
  calls.clear();
  call_accesses.clear();
  bodies.clear();
  accesses.clear();
  overlaps.clear();
  specials.clear();
  slots.clear();
  structures.clear();
  places.clear();
  strides.clear();
  immediates.clear();
  counts.clear();
  blocks.clear();
  block_bytes.clear();
  shapes.clear();
}

void Program::reserve(size_t instructions) {
  const size_t operands = 4 * instructions;
  code.reserve(instructions);
  accesses.reserve(operands);
  places.reserve(operands);
  slots.reserve(operands);
  blocks.reserve(operands);
  block_bytes.reserve(operands);
  counts.reserve(instructions);
  specials.reserve(operands);
  immediates.reserve(operands);
}

Program Program::key() const {
  Program copy;
  copy.code = code;
  copy.calls = calls;
  copy.call_accesses = call_accesses;
  copy.accesses = accesses;
  copy.overlaps = overlaps;
  copy.specials = specials;
  copy.slots = slots;
  copy.structures = structures;
  copy.contracts = contracts;
  copy.float_mode = float_mode;
  return copy;
}

const char* Program::name_of(const Instruction& instruction) const noexcept {
  return instruction.code == kCall ? call_of(instruction).name : code_name(instruction.code);
}

size_t Program::key_bytes() const noexcept {
  const auto bytes = [](const auto&... columns) {
    return ((columns.size() * sizeof columns[0]) + ...);
  };
  return bytes(code, calls, call_accesses, accesses, overlaps, specials, slots, structures);
}

bool Program::same_key(const Program& other) const noexcept {
  return same_bytes(code, other.code) && same_bytes(calls, other.calls) &&
         same_bytes(call_accesses, other.call_accesses) && same_bytes(accesses, other.accesses) &&
         same_bytes(overlaps, other.overlaps) && same_bytes(specials, other.specials) &&
         same_bytes(slots, other.slots) && same_bytes(structures, other.structures) &&
         contracts == other.contracts && float_mode == other.float_mode;
}

uint64_t Program::hash() const noexcept {
  uint64_t hash = 0x51ed270b7a1f3c5du + (contracts ? 1 : 0) + 2 * uint64_t{float_mode};
  hash = mix(hash, code);
  hash = mix(hash, calls);
  hash = mix(hash, call_accesses);
  hash = mix(hash, accesses);
  hash = mix(hash, overlaps);
  hash = mix(hash, specials);
  hash = mix(hash, structures);
  return mix(hash, slots);
}

const char* code_name(Code code) noexcept {
  if (code == kCopy) return "copy";
  if (is_draw(code)) return draw_name(draw_of(code));
  const OpInfo& info = op_info(op_of(code));
  return is_fold(code) ? info.fold : is_scan(code) ? info.scan : info.name;
}

const char* scan_axis_name(Spread axis) noexcept {
  return axis == kColumns ? " along rows" : " down rows";
}

const char* spread_name(Spread spread) noexcept {
  switch (spread) {
    case kPlanes: return " by plane";
    case kMiddle: return " by row of a plane";
    case kRows: return " by row";
    case kColumns: return " by column";
    case kPlanesAndColumns: return " by plane and column";
    case kMiddle | kColumns: return " by element of a plane";
    default: return "";
  }
}

std::string describe_access(const Program& program, uint16_t access, Spread spread) {
  const AccessKey& key = program.accesses[access];
  std::string text = (program.slots[key.slot].live ? "b" : "t") + std::to_string(key.slot);
  const Place& place = program.places[access];
  if (place.offset != 0) text += "+" + std::to_string(place.offset);
  text += std::string(":") + dtype_name(key.dtype);
  if (key.layout == Layout::dense) {
    if (spread == kOne) return text + "[]";
    return text + "[" + std::to_string(program.counts[key.space]) + "]" + spread_name(spread);
  }
  const auto& sizes = program.shapes[key.shape].sizes;
  const auto list = [&](const int64_t* items, int64_t unit) {
    std::string joined;
    for (size_t d = 0; d < sizes.size(); ++d) {
      joined += (d == 0 ? "" : ", ") + std::to_string(items[d] / unit);
    }
    return joined;
  };
  return text + "[" + list(sizes.data(), 1) + "]{" +
         list(program.strides.data() + place.stride, static_cast<int64_t>(dtype_size(key.dtype))) +
         "}";
}

std::string describe_immediate(uint64_t bits, DType dtype) {
  char text[32];
  const auto shortest = [&](auto value) {
    std::memcpy(&value, &bits, sizeof value);
    return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
  };
  switch (compute_type_of(dtype)) {
    case ComputeType::f32: return shortest(float{});
    case ComputeType::f64: return shortest(double{});
    case ComputeType::i64: break;
  }
  return shortest(int64_t{});
}

std::string describe_call(const Program& program, const CallKey& call) {
  const auto list = [&](std::span<const uint16_t> accesses) {
    std::string text;
    for (const uint16_t access : accesses) {
      text += (text.empty() ? "" : ", ") + describe_access(program, access);
    }
    return text;
  };
  return list(program.writes_of(call)) + " = " + call.name + "(" + list(program.reads_of(call)) +
         ")";
}

std::vector<std::string> describe(const Program& program) {
  std::vector<std::string> lines;
  for (const Instruction& instruction : program.code) {
    if (instruction.code == kCall) {
      lines.push_back(describe_call(program, program.call_of(instruction)));
      continue;
    }
    std::string text = describe_access(program, instruction.out, instruction.out_spread()) + " = " +
                       code_name(instruction.code) + "." + dtype_name(instruction.dtype) + "(";
    for (int i = 0; i < instruction.arity; ++i) {
      const Source source = instruction.in[static_cast<size_t>(i)];
      if (i != 0) text += ", ";
      const Spread spread = instruction.spread(static_cast<size_t>(i));
      text += source == kPosition ? std::string("position") + spread_name(spread)
              : (source & kImmediate) != 0
                  ? describe_immediate(program.immediates[source & ~kImmediate],
                                       is_draw(instruction.code) ? DType::i64 : instruction.dtype)
                  : describe_access(program, source, spread);
    }
    const bool scans = is_scan(instruction.code);
    lines.push_back(text + ")" + (scans ? scan_axis_name(scan_axis(instruction.code)) : ""));
  }
  return lines;
}

std::string to_string(const Program& program) {
  std::string text;
  for (const std::string& line : describe(program)) text += line + "\n";
  return text;
}

}  // namespace hologram
