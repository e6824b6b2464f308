// Strings and errors.
#pragma once

#include <string>

#include "objc.h"

namespace simulated_metal {

class String final : public Object {
 public:
  explicit String(std::string text);
  const std::string text;
};

class Error final : public Object {
 public:
  explicit Error(std::string text);
  const std::string text;
};

}  // namespace simulated_metal
