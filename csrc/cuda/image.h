// A file of compiled kernels, mapped: of what is not looked at nothing is read.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hologram::cuda {

// The names of the functions and objects of a 64-bit ELF file, sorted; they lie in it. None where
// the file is no such one.
std::optional<std::vector<std::string_view>> symbols_of(std::span<const char> elf);

class Image {
 public:
  // Throws Error where it cannot be read, or is machine code and not whole.
  explicit Image(std::string path);
  ~Image();
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;

  const std::string& path() const noexcept { return path_; }
  // With a zero behind it, which text needs.
  const char* data() const noexcept { return data_; }
  // Whether it may have a kernel: of machine code that is known, of text it is not.
  bool may_have(std::string_view kernel) const noexcept;

 private:
  const std::string path_;
  char* data_ = nullptr;
  size_t mapped_ = 0;
  std::optional<std::vector<std::string_view>> symbols_;
};

}  // namespace hologram::cuda
