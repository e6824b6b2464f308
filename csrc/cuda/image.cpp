#include "cuda/image.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "atlas/error.h"

namespace hologram::cuda {
namespace {

// So many T from there on; none where they are not all in the file.
template <class T>
std::optional<std::vector<T>> read(std::span<const char> file, uint64_t offset, uint64_t count) {
  if (offset > file.size() || count > (file.size() - offset) / sizeof(T)) return std::nullopt;
  std::vector<T> list(count);
  std::memcpy(list.data(), file.data() + offset, count * sizeof(T));
  return list;
}

}  // namespace

std::optional<std::vector<std::string_view>> symbols_of(std::span<const char> elf) {
  const auto header = read<Elf64_Ehdr>(elf, 0, 1);
  if (!header || std::memcmp(header->front().e_ident, ELFMAG, SELFMAG) != 0 ||
      header->front().e_ident[EI_CLASS] != ELFCLASS64 ||
      header->front().e_shentsize != sizeof(Elf64_Shdr)) {
    return std::nullopt;
  }
  const auto sections = read<Elf64_Shdr>(elf, header->front().e_shoff, header->front().e_shnum);
  if (!sections) return std::nullopt;
  std::vector<std::string_view> names;
  for (const Elf64_Shdr& section : *sections) {
    if (section.sh_type != SHT_SYMTAB) continue;
    if (section.sh_link >= sections->size()) return std::nullopt;
    const Elf64_Shdr& text = (*sections)[section.sh_link];
    const auto symbols =
        read<Elf64_Sym>(elf, section.sh_offset, section.sh_size / sizeof(Elf64_Sym));
    if (!symbols || text.sh_offset > elf.size() || text.sh_size > elf.size() - text.sh_offset) {
      return std::nullopt;
    }
    const std::string_view all(elf.data() + text.sh_offset, text.sh_size);
    for (const Elf64_Sym& symbol : *symbols) {
      const size_t end = all.find('\0', symbol.st_name);
      if (end == std::string_view::npos) return std::nullopt;
      if (end != symbol.st_name) names.push_back(all.substr(symbol.st_name, end - symbol.st_name));
    }
  }
  std::ranges::sort(names);
  return names;
}

// What is behind the end of a file in its last page is zero; one that ends with a page has the next
// one from nowhere.
Image::Image(std::string path) : path_(std::move(path)) {
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (file < 0 || ::fstat(file, &status) != 0) {
    if (file >= 0) ::close(file);
    throw Error("the kernels in " + path_ + " cannot be read");
  }
  const auto size = static_cast<size_t>(status.st_size);
  mapped_ = size + 1;
  void* const whole = ::mmap(nullptr, mapped_, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool ok =
      whole != MAP_FAILED &&
      (size == 0 || ::mmap(whole, size, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0) != MAP_FAILED);
  ::close(file);
  if (!ok) {
    if (whole != MAP_FAILED) ::munmap(whole, mapped_);
    throw Error("the kernels in " + path_ + " cannot be read");
  }
  data_ = static_cast<char*>(whole);
  symbols_ = symbols_of({data_, size});
  if (!symbols_ && std::string_view(data_, size).starts_with(ELFMAG)) {
    ::munmap(data_, mapped_);
    throw Error("the kernels in " + path_ + " are damaged");
  }
}

Image::~Image() {
  ::munmap(data_, mapped_);
}

bool Image::may_have(std::string_view kernel) const noexcept {
  return !symbols_ || std::ranges::binary_search(*symbols_, kernel);
}

}  // namespace hologram::cuda
