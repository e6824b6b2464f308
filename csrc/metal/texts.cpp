#include "metal/texts.h"

#include <set>
#include <string_view>

#include "atlas/error.h"

namespace hologram::metal {
namespace {

constexpr std::string_view kInclude = "#include \"";

struct Header {
  std::string_view name, text;
};
constexpr Header kDialect[] = {
#include "dialect.inc"
};
// The dialect's file for the other language, which a condition leaves out.
constexpr std::string_view kOthers = "prelude_cuda.h";

void append(std::string& result, std::string_view text, std::set<std::string_view>& included) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (!line.starts_with(kInclude)) {
      result.append(line).push_back('\n');
      continue;
    }
    std::string_view name = line.substr(kInclude.size());
    name = name.substr(0, name.find('"'));
    const Header* header = nullptr;
    for (const Header& its : kDialect) {
      if (its.name == name) header = &its;
    }
    if (header != nullptr) {
      if (included.insert(header->name).second) append(result, header->text, included);
    } else if (name != kOthers) {
      throw Error("a text of kernels includes " + std::string(name) +
                  ", which is not of the dialect");
    }
  }
}

}  // namespace

std::string self_contained(const std::string& text) {
  std::string result;
  std::set<std::string_view> included;
  append(result, text, included);
  return result;
}

}  // namespace hologram::metal
