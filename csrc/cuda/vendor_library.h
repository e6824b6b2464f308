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
template <class F>
void find_function(void* library, const char* name, F& function, std::string& error) {
  function = reinterpret_cast<F>(find_function(library, name, error));
}

// For lists of functions, which are macros that are given one of these: the functions of a library
// as members, and what finds them in open_functions().
#define HOLOGRAM_VENDOR_MEMBER(symbol, result, name, arguments) result(*name) arguments;
#define HOLOGRAM_VENDOR_FIND(symbol, result, name, arguments) \
  find_function(library, #symbol, functions.name, error);

template <class Functions>
struct VendorFunctions {
  Functions functions{};
  std::string error;  // why there are none
};

// `find`: called with (library, functions, error) where the library is there.
template <class Functions, class Find>
VendorFunctions<Functions> open_functions(const VendorLibrary& file, Find&& find) {
  VendorFunctions<Functions> result;
  void* const library = open_library(file, result.error);
  if (library != nullptr) find(library, result.functions, result.error);
  return result;
}

}  // namespace hologram::cuda
