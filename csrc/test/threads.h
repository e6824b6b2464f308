// Threads for the CPU backend's runs in tests.
#pragma once

#include <thread>
#include <vector>

#include "cpu/parallel.h"

namespace hologram::test {

struct Threads : cpu::Parallel {
  explicit Threads(int how_many) : count(how_many) {}
  int threads() const override { return count; }
  void run(int threads, Body body, void* context) override {
    std::vector<std::thread> all;
    for (int i = 1; i < threads; ++i) all.emplace_back(body, context, i);
    body(context, 0);
    for (std::thread& thread : all) thread.join();
  }
  int count;
};

}  // namespace hologram::test
