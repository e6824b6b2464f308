// What the environment says to simulated devices.
#pragma once

#include <cstdlib>
#include <set>
#include <sstream>
#include <string>

namespace sim {

inline int number(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr && *text != '\0' ? std::atoi(text) : otherwise;
}

// "2,5"
inline std::set<int> numbers(const char* variable) {
  const char* const text = std::getenv(variable);
  std::istringstream stream(text != nullptr ? text : "");
  std::set<int> list;
  for (std::string part; std::getline(stream, part, ',');) list.insert(std::stoi(part));
  return list;
}

}  // namespace sim
