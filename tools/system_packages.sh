#!/usr/bin/env bash
# Prints the Debian packages that building torch_hologram needs and this machine lacks, one a line;
# prints nothing when all is there. What counts is that a tool works, not which package brought it.
# usage: tools/system_packages.sh [python [test|full]]      (default: python3)
#   test, full: those that `make test` or `make test-full` needs besides
set -u
python=${1:-python3}
tests=${2:-}

command -v make >/dev/null || echo make
# The compiler has to know C++20.
echo 'int main() { return []<class T>(T x) { return x; }(0); }' |
  "${CXX:-g++}" -std=c++20 -fsyntax-only -x c++ - 2>/dev/null || echo g++
# The emulator of GPU kernels (test/gpu) compiles them with this one. So is what calls Metal
# (csrc/metal), whose types are checked for macOS with LLVM's library and arm64's C headers, too.
if [ -n "$tests" ]; then
  command -v clang++-19 >/dev/null || echo clang-19
  echo '#include <Block.h>' | "${CXX:-g++}" -fsyntax-only -x c++ - 2>/dev/null ||
    echo libblocksruntime-dev
  clang=$(clang++-19 -print-resource-dir 2>/dev/null || echo /usr/lib/llvm-19/lib/clang/19)
  [ -e "$clang/../../../include/c++/v1/vector" ] || echo libc++-19-dev
  [ -e /usr/aarch64-linux-gnu/include/stdlib.h ] || echo libc6-dev-arm64-cross
fi
if [ "$tests" = full ]; then
  runtime=$(clang++-19 -print-file-name=libclang_rt.asan-x86_64.so 2>/dev/null)
  [ -e "$runtime" ] || echo libclang-rt-19-dev
  # make test-portable and test-arm64
  [ -e "$(clang++-19 -print-file-name=libc++abi.a 2>/dev/null)" ] || echo libc++abi-19-dev
  command -v aarch64-linux-gnu-g++ >/dev/null || echo g++-aarch64-linux-gnu
  command -v qemu-aarch64 >/dev/null || echo qemu-user
fi
if ! command -v "$python" >/dev/null; then
  printf '%s\n' python3 python3-venv python3-dev
  exit 0
fi
"$python" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
"$python" -c '
import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))
' || echo python3-dev
