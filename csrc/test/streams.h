// Streams for tests: blocks of a heap, and a window whose programs the interpreter runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "atlas/block_state.h"
#include "atlas/plan_cache.h"
#include "atlas/window.h"
#include "interpreter.h"
#include "operands.h"

namespace hologram::test {

using interpreter::Interpreter;

// Memory as a backend would hand it out: what is given back is overwritten and used again at once.
struct Heap {
  std::multimap<size_t, char*> idle;
  std::vector<std::unique_ptr<char[]>> all;
  int retired = 0;  // blocks whose owner has gone before the window was done

  Interpreter* queue = nullptr;  // that the memory is used by, if that is late

  char* allocate(size_t bytes) {
    if (const auto found = idle.find(bytes); found != idle.end()) {
      char* memory = found->second;
      idle.erase(found);
      if (queue != nullptr) queue->wait_for_all();  // the host writes to it next
      return memory;
    }
    all.push_back(std::make_unique<char[]>(bytes));
    return all.back().get();
  }
  void give_back(char* memory, size_t bytes) {
    if (queue != nullptr) {
      queue->push([=] { std::memset(memory, 0x7b, bytes); });
    } else {
      std::memset(memory, 0x7b, bytes);
    }
    idle.emplace(bytes, memory);
  }
};

struct TestBlock final : BlockState {
  TestBlock(Heap& from, size_t nbytes) : heap(from) {
    bytes = nbytes;
    data = heap.allocate(nbytes);
  }
  void give_back_memory() noexcept override { heap.give_back(data, bytes); }
  void retire_memory() noexcept override { ++heap.retired; }
  Heap& heap;
};

template <class E>
struct StreamOn {
  Heap heap;
  E backend;
  PlanCache plans{backend};
  Window window{plans, backend, backend};
  TestBlock* make(int64_t count) {
    auto* block = new TestBlock(heap, static_cast<size_t>(count) * 4);
    block->born = window.open_program();
    return block;
  }
  TestBlock* filled(std::vector<float> values) {
    auto* block = make(static_cast<int64_t>(values.size()));
    std::memcpy(block->data, values.data(), values.size() * 4);
    block->born = 0;
    return block;
  }
  static std::vector<float> read(TestBlock* block) { return test::read(block); }
};
using Stream = StreamOn<Interpreter>;

}  // namespace hologram::test
