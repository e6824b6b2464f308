#include "cuda/kernel_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "atlas/error.h"
#include "atlas/fnv.h"

namespace hologram::cuda {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExtension = ".kernels";
// The first line of a file; another number for each change of what follows:
//   hash, in hexadecimal, of all that follows
//   a line for each kernel, with its name and the hash of its text; an empty one
//   the code
constexpr const char* kFormat = "torch_hologram kernels 1\n";

std::string hex(uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, number);
  return text;
}

std::string line_of(const gpu::Kernel& kernel) {
  return kernel.name + " " + hex(fnv1a(kernel.text));
}

// Once in a process.
void warn_once(const std::string& path, const std::string& what) {
  static std::atomic<bool> has_warned{false};
  if (has_warned.exchange(true)) return;
  std::fprintf(stderr, "torch_hologram: compiled kernels in %s: %s\n", path.c_str(), what.c_str());
}

std::string reason(int error) {
  return std::generic_category().message(error);
}

// Nothing where it is a folder that this user alone can write.
std::string objection(const std::string& folder) {
  struct stat found {};
  if (stat(folder.c_str(), &found) != 0) return reason(errno);
  if (!S_ISDIR(found.st_mode)) return "it is no folder";
  if (found.st_uid != geteuid()) return "it is another user's";
  if ((found.st_mode & (S_IWGRP | S_IWOTH)) != 0) return "others can write it";
  return {};
}

// A file of the format without its first two lines; throws Error for any other.
std::string checked(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t format = std::string(kFormat).size(), start = format + 17;
  if (text.size() < start || text.compare(0, format, kFormat) != 0) {
    throw Error("no file of this version");
  }
  const std::string body = text.substr(start);
  if (text.compare(format, 17, hex(fnv1a(body)) + "\n") != 0) {
    throw Error("the file is damaged");
  }
  return body;
}

size_t end_of_lines(const std::string& body) {
  const size_t end = body.find("\n\n");
  if (end == std::string::npos) throw Error("the file is damaged");
  return end + 1;
}

}  // namespace

std::string cache_folder() {
  const auto variable = [](const char* name) {
    const char* const given = std::getenv(name);
    return std::string(given != nullptr ? given : "");
  };
  const std::string own = variable("HOLOGRAM_CACHE_DIR");
  if (own == "0") return {};
  if (!own.empty()) return own;
  // https://specifications.freedesktop.org/basedir-spec
  const std::string caches = variable("XDG_CACHE_HOME"), home = variable("HOME");
  if (caches.starts_with('/')) return caches + "/torch_hologram";
  if (home.starts_with('/')) return home + "/.cache/torch_hologram";
  return {};
}

KernelCache::KernelCache(std::string folder, std::string version)
    : root_(std::move(folder)), folder_(root_ + "/" + version) {
  if (root_.empty()) state_ = State::refused;
}

bool KernelCache::open() {
  if (state_ != State::closed) return state_ == State::open;
  state_ = State::refused;
  std::error_code failed;
  const fs::path parent = fs::path(root_).parent_path();
  if (!parent.empty()) fs::create_directories(parent, failed);
  for (const std::string& folder : {root_, folder_}) {
    if (!failed && mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
      failed = std::error_code(errno, std::generic_category());
    }
    const std::string why = failed ? failed.message() : objection(folder);
    if (why.empty()) continue;
    warn_once(folder, why + "; none are kept");
    return false;
  }
  state_ = State::open;
  list();
  return true;
}

void KernelCache::list() {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder_, ignored)) {
    if (entry.path().extension() != kExtension) continue;
    const std::string path = entry.path();
    try {
      const std::string body = checked(path);
      const size_t end = end_of_lines(body);
      for (size_t at = 0; at < end;) {
        const size_t next = body.find('\n', at);
        files_[body.substr(at, next - at)] = path;
        at = next + 1;
      }
    } catch (const std::exception& error) {
      discard(path, error.what());
    }
  }
}

std::optional<std::string> KernelCache::find(const gpu::Kernel& kernel) {
  if (!open()) return std::nullopt;
  const auto found = files_.find(line_of(kernel));
  if (found == files_.end()) return std::nullopt;
  return found->second;
}

std::string KernelCache::read(const std::string& path) const {
  const std::string body = checked(path);
  std::error_code ignored;
  fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);  // it is used
  return body.substr(end_of_lines(body) + 1);
}

void KernelCache::discard(const std::string& path, const std::string& why) {
  std::erase_if(files_, [&](const auto& known) { return known.second == path; });
  std::error_code ignored;
  // Another process may have removed it.
  if (!fs::remove(path, ignored)) return;
  ++discarded;
  warn_once(path, why + "; it is removed, and what it had compiled again");
}

void KernelCache::keep(const std::vector<const gpu::Kernel*>& kernels, const std::string& code) {
  if (!open()) return;
  std::string lines;
  for (const gpu::Kernel* const kernel : kernels) lines += line_of(*kernel) + "\n";
  const std::string body = lines + "\n" + code;
  const std::string path = folder_ + "/" + hex(fnv1a(lines)) + kExtension;
  // Under a name of its own until it is whole.
  std::string unfinished = folder_ + "/unfinished-XXXXXX";
  const int file = mkstemp(unfinished.data());
  std::FILE* const stream = file >= 0 ? fdopen(file, "wb") : nullptr;
  bool is_written = false;
  if (stream != nullptr) {
    const std::string text = kFormat + hex(fnv1a(body)) + "\n" + body;
    is_written = std::fwrite(text.data(), 1, text.size(), stream) == text.size();
    is_written = std::fclose(stream) == 0 && is_written;
    is_written = is_written && std::rename(unfinished.c_str(), path.c_str()) == 0;
  }
  if (!is_written) {
    warn_once(folder_, reason(errno) + "; none are kept");
    if (file >= 0) std::remove(unfinished.c_str());
    state_ = State::refused;
    return;
  }
  for (const gpu::Kernel* const kernel : kernels) files_[line_of(*kernel)] = path;
  try {
    shrink();
  } catch (const fs::filesystem_error&) {
    // Another process removes some at the same time.
  }
}

void KernelCache::shrink() const {
  struct File {
    fs::file_time_type used;
    fs::path path;
    uint64_t bytes;
  };
  std::vector<File> files;
  uint64_t sum = 0;
  std::error_code failed;
  for (const auto& entry : fs::recursive_directory_iterator(root_, failed)) {
    const std::string name = entry.path().filename();
    if (entry.path().extension() != kExtension && !name.starts_with("unfinished-")) continue;
    std::error_code gone;
    File file{entry.last_write_time(gone), entry.path(), entry.file_size(gone)};
    if (gone) continue;
    sum += file.bytes;
    files.push_back(std::move(file));
  }
  std::ranges::sort(files, {}, &File::used);
  for (const File& file : files) {
    if (sum <= kMostBytes) return;
    std::error_code gone;
    fs::remove(file.path, gone);
    sum -= file.bytes;
  }
}

}  // namespace hologram::cuda
