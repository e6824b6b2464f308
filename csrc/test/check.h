// A small unit-test frame: TEST registers a function, CHECK* report a failure and go on.
#pragma once

#include <atomic>
#include <concepts>
#include <cstring>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <typeinfo>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*body)();
  bool subprocess;  // runs only when named in full on the command line
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

struct Registration {
  Registration(const char* name, void (*body)(), bool subprocess) {
    tests().push_back({name, body, subprocess});
  }
};

inline std::atomic<int> failures{0};

inline void fail(const char* file, int line, const std::string& what) {
  ++failures;
  std::cerr << (std::string(file) + ":" + std::to_string(line) + ": " + what + "\n");
}

template <class T>
std::string text(const T& value) {
  std::ostringstream out;
  out.precision(17);
  if constexpr (requires { out << value; }) {
    out << value;
  } else {
    out << "<" << sizeof(T) << " bytes>";
  }
  return out.str();
}

template <class A, class B>
bool equal(const A& a, const B& b) {
  if constexpr (std::integral<A> && std::integral<B>) {
    return static_cast<__int128>(a) == static_cast<__int128>(b);  // as numbers, whatever the signs
  } else {
    return a == b;
  }
}

// What became of a child process: "exit 0", "signal 6".
std::string describe_status(int status);

// Runs `body` in a forked child, which exits with 0 if no check failed there. Standard error is
// dropped.
std::string run_in_fork(void (*body)());

// Runs the subprocess test `name` in a fresh process with more environment variables, "NAME=value".
std::string run_again(const char* name, const std::vector<std::string>& environment);

}  // namespace check

#define CHECK_TEST(name, subprocess)                                                    \
  static void test_##name();                                                            \
  static const check::Registration registration_##name{#name, test_##name, subprocess}; \
  static void test_##name()
#define TEST(name) CHECK_TEST(name, false)
#define SUBPROCESS_TEST(name) CHECK_TEST(name, true)

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) check::fail(__FILE__, __LINE__, "not true: " #condition); \
  } while (false)

#define CHECK_EQ(actual, expected)                                                             \
  do {                                                                                         \
    const auto actual_value = (actual);                                                        \
    const auto expected_value = (expected);                                                    \
    if (!check::equal(actual_value, expected_value)) {                                         \
      check::fail(__FILE__, __LINE__,                                                          \
                  #actual " is " + check::text(actual_value) + ", expected " #expected " = " + \
                      check::text(expected_value));                                            \
    }                                                                                          \
  } while (false)

// `expression` throws exactly the type `Exception`, with `part` in its message.
#define CHECK_THROWS(expression, Exception, part)                                             \
  do {                                                                                        \
    try {                                                                                     \
      (void)(expression);                                                                     \
      check::fail(__FILE__, __LINE__, "did not throw: " #expression);                         \
    } catch (const std::exception& error) {                                                   \
      if (typeid(error) != typeid(Exception) || std::strstr(error.what(), part) == nullptr) { \
        check::fail(__FILE__, __LINE__,                                                       \
                    #expression " threw " + std::string(typeid(error).name()) + ": " +        \
                        error.what() + ", expected " #Exception " with: " + part);            \
      }                                                                                       \
    }                                                                                         \
  } while (false)
