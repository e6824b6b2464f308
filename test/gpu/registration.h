// Appended to kernel text by the source pass: HGEMU_KERNEL makes a function one that the emulator
// can call. The types of the arguments come from the function, their roles from the pass.
#pragma once

#include "device_side.h"

namespace hgemu {

template <class A>
struct Passed;  // of an argument of type A: what its slot is, and how it is read
template <class T>
struct Passed<T*> {
  static constexpr size_t bytes = 0;
  static T* read(void* slot, Role) {
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(slot));
  }
};
template <class T>
struct Passed<T&> {
  static constexpr size_t bytes = sizeof(T);
  static T& read(void* slot, Role) {
    return *reinterpret_cast<__remove_reference_t(T)*>(reinterpret_cast<uintptr_t>(slot));
  }
};
#if defined(__METAL__)
template <>
struct Passed<metal::uint3> {
  static constexpr size_t bytes = 0;
  static metal::uint3 read(void*, Role role) {
    const Triple t = builtin(role);
    return metal::uint3{t.x, t.y, t.z};
  }
};
template <>
struct Passed<unsigned int> {
  static constexpr size_t bytes = 0;
  static unsigned int read(void*, Role role) { return builtin(role).x; }
};
template <>
struct Passed<unsigned short> {
  static constexpr size_t bytes = 0;
  static unsigned short read(void*, Role role) {
    return static_cast<unsigned short>(builtin(role).x);
  }
};
#else
template <class T>
struct Passed {
  static constexpr size_t bytes = sizeof(T);
  static const T& read(void* slot, Role) { return *static_cast<const T*>(slot); }
};
#endif

template <int... i>
struct Indices {};
template <int n, int... i>
struct MakeIndices : MakeIndices<n - 1, n - 1, i...> {};
template <int... i>
struct MakeIndices<0, i...> {
  using type = Indices<i...>;
};

template <class... A, int... i>
inline void call(void (*function)(A...), const ArgumentInfo* info, void* const* slots,
                 Indices<i...>) {
  function(Passed<A>::read(slots[i], info[i].role)...);
}
template <class... A>
inline void call(void (*function)(A...), const ArgumentInfo* info, void* const* slots) {
  call(function, info, slots, typename MakeIndices<sizeof...(A)>::type());
}
template <class... A>
inline void set_bytes(void (*)(A...), ArgumentInfo* info) {
  const size_t bytes[] = {Passed<A>::bytes...};
  for (size_t i = 0; i < sizeof...(A); ++i) {
    if (info[i].role == Role::parameter) info[i].bytes = bytes[i];
  }
}
template <class... A>
constexpr int count_of(void (*)(A...)) {
  return sizeof...(A);
}

static const KernelInfo* first_kernel = nullptr;

}  // namespace hgemu

extern "C" __attribute__((visibility("default"))) const hgemu::KernelInfo* hgemu_kernels() {
  return hgemu::first_kernel;
}

// HGEMU_KERNEL(a number, "name", function, {role, index, 0}...)
#define HGEMU_KERNEL(number, text, function, ...)                                         \
  static hgemu::ArgumentInfo hgemu_arguments_##number[] = {__VA_ARGS__};                  \
  static void hgemu_run_##number(void* const* slots) {                                    \
    hgemu::call(function, hgemu_arguments_##number, slots);                               \
  }                                                                                       \
  static hgemu::KernelInfo hgemu_kernel_##number = {text, hgemu_run_##number, 0,          \
                                                    hgemu_arguments_##number, nullptr};   \
  __attribute__((constructor)) static void hgemu_register_##number() {                    \
    static_assert(hgemu::count_of(static_cast<decltype(&function)>(nullptr)) ==           \
                      sizeof hgemu_arguments_##number / sizeof *hgemu_arguments_##number, \
                  "an argument without a role");                                          \
    hgemu_kernel_##number.count = hgemu::count_of(function);                              \
    hgemu::set_bytes(function, hgemu_arguments_##number);                                 \
    hgemu_kernel_##number.next = hgemu::first_kernel;                                     \
    hgemu::first_kernel = &hgemu_kernel_##number;                                         \
  }
