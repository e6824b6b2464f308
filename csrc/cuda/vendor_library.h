// Libraries of NVIDIA's that are found when they are first needed: in the process, where the system
// has libraries, or where pip puts them beside torch.
#pragma once

#include <span>
#include <string>

namespace hologram::cuda {

struct VendorLibrary {
  const char* variable;                  // of the environment, which names a file
  std::span<const char* const> names;    // newest first
  std::span<const char* const> folders;  // "/nvidia/cu13/lib/", in the folder that torch's is in
};

// The handle of dlopen; null, with `error` for the reason, where there is none.
void* open_library(const VendorLibrary& library, std::string& error);

// Looks for a function; the first that is not there is what `error` says.
void* find_function(void* library, const char* name, std::string& error);

// Whether it is there.
template <class F>
bool find_function(void* library, const char* name, F& function, std::string& error) {
  function = reinterpret_cast<F>(find_function(library, name, error));
  return function != nullptr;
}

}  // namespace hologram::cuda
