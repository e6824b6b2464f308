// Where elements are: in the space and in operands.
#include <algorithm>

#include "gpu/emitter.h"

namespace hologram::gpu {

std::string Emitter::place(char which) {
  needed_ += needed_.find(which) == std::string::npos ? std::string(1, which) : "";
  return {which};
}

std::string Emitter::place_of(Spread spread) {
  const auto columns = [&] { return parameter(Parameter::Kind::columns); };
  switch (spread) {
    case kOne: return "0";
    case kPlanes: return place('l');
    case kMiddle: return place('m');
    case kRows: return place('r');
    case kColumns: return place('c');
    case kPlanesAndColumns: return place('l') + " * " + columns() + " + " + place('c');
    case kMiddle | kColumns: return place('m') + " * " + columns() + " + " + place('c');
    default: return place('e');
  }
}

std::string Emitter::row_places(const std::string& indent) {
  std::string text;
  if (!needs('m') && !needs('l')) return text;
  const std::string rows = parameter(Parameter::Kind::rows);
  if (needs('m')) text += indent + "  const " + index_ + " m = r % " + rows + ";\n";
  if (needs('l')) text += indent + "  const " + index_ + " l = r / " + rows + ";\n";
  return text;
}

std::string Emitter::place_in(uint16_t which) {
  const Operand& its = steps_.operands[which];
  if (its.layout == Layout::scalar) return "0";
  if (its.layout == Layout::strided) {
    is_strided_ = true;
    if (std::ranges::find(strided_, which) == strided_.end()) strided_.push_back(which);
    const auto at = std::ranges::find(strided_, which) - strided_.begin();
    return "s" + number(static_cast<uint64_t>(at));
  }
  return place_of(steps_.structured ? its.spread : kEach);
}

std::string Emitter::strided_places() {
  const std::string step = variant_.wide ? "hg_i64" : "hg_i32";
  std::string text = "  " + index_ + " rest = e;\n";
  for (size_t k = 0; k < strided_.size(); ++k) text += "  " + step + " s" + number(k) + " = 0;\n";
  for (int d = variant_.rank - 1; d >= 0; --d) {
    const auto dimension = static_cast<uint8_t>(d);
    const std::string at = "d" + number(dimension);
    if (d == 0) {
      text += "  const " + step + " " + at + " = " + step + "(rest);\n";
    } else {
      const std::string size = parameter({Parameter::Kind::size, 4, 0, dimension});
      text += "  const " + step + " " + at + " = " + step + "(rest % " + size + ");\n";
      text += "  rest /= " + size + ";\n";
    }
    for (size_t k = 0; k < strided_.size(); ++k) {
      const std::string stride = parameter({Parameter::Kind::stride, 4, strided_[k], dimension});
      text += "  s" + number(k) + " += " + at + " * " + stride + ";\n";
    }
  }
  return text;
}

std::string Emitter::first_place(uint16_t which) {
  const std::string columns =
      steps_.structured ? parameter(Parameter::Kind::columns) : std::string();
  switch (steps_.structured ? steps_.operands[which].spread : kEach) {
    case kColumns: place('c'); return "c0";
    case kPlanesAndColumns: place('c'); return place('l') + " * " + columns + " + c0";
    case kMiddle | kColumns: place('c'); return place('m') + " * " + columns + " + c0";
    default: return "e0";
  }
}

std::string Emitter::thread_text() {
  const std::string block = variant_.many ? "HG_BID - hg_u32(row->block)" : "HG_BID";
  return "  const " + index_ + " t = " + index_ + "(" + block + ") * HG_BDIM + HG_LID;\n";
}

std::string Emitter::return_text(const std::string& which) {
  return "  if (" + which + " >= " + parameter(Parameter::Kind::threads) + ") return;\n";
}

}  // namespace hologram::gpu
