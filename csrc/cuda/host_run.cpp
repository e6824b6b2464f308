#include "cuda/host_run.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "atlas/own_bindings.h"

namespace hologram::cuda {
namespace {

struct Range {
  char* begin;
  char* end;
  bool written;
};

Range range_of(const Group& group, const Binding& binding, size_t operand) {
  const Operand& its = group.operands[operand];
  const auto size = static_cast<int64_t>(dtype_size(its.dtype));
  int64_t before = 0, bytes = size;
  if (its.layout == Layout::strided) {
    const auto rank = static_cast<size_t>(binding.rank);
    for (size_t d = 0; d < rank; ++d) {
      const int64_t reach = (binding.sizes[d] - 1) * binding.strides[operand * rank + d];
      (reach < 0 ? before : bytes) += reach < 0 ? -reach : reach;
    }
  } else {
    bytes = element_count(its, binding) * size;
  }
  auto* const start = static_cast<char*>(binding.operands[operand]);
  return {start - before, start + bytes, false};
}

// Operands that share memory share a copy.
std::vector<Range> joined(std::vector<Range> ranges) {
  std::ranges::sort(ranges, {}, &Range::begin);
  std::vector<Range> result;
  for (const Range& its : ranges) {
    if (its.begin == its.end) continue;
    if (result.empty() || result.back().end <= its.begin) {
      result.push_back(its);
    } else {
      result.back().end = std::max(result.back().end, its.end);
      result.back().written = result.back().written || its.written;
    }
  }
  return result;
}

// Of a copy; elements have to be aligned as the device's are.
constexpr size_t kAlignment = 64;

}  // namespace

void run_on_copies(hologram::Queue& queue, const Group& group, const cpu::CompiledGroup& code,
                   const Binding& binding) {
  std::vector<Range> ranges;
  for (size_t i = 0; i < group.operands.size(); ++i) {
    ranges.push_back(range_of(group, binding, i));
    ranges.back().written = std::ranges::any_of(
        group.nodes, [&](const Node& node) { return node.kind == NodeKind::store && node.b == i; });
  }
  ranges = joined(std::move(ranges));
  std::vector<size_t> offsets;
  size_t bytes = 0;
  for (const Range& its : ranges) {
    bytes += reinterpret_cast<uintptr_t>(its.begin) % kAlignment;
    offsets.push_back(bytes);
    bytes += static_cast<size_t>(its.end - its.begin);
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  struct Free {
    void operator()(char* memory) const { ::operator delete(memory, std::align_val_t(kAlignment)); }
  };
  const std::unique_ptr<char, Free> copies(
      static_cast<char*>(::operator new(bytes, std::align_val_t(kAlignment))));
  const auto transfer = [&](Direction direction) {
    try {
      for (size_t i = 0; i < ranges.size(); ++i) {
        const auto& [begin, end, written] = ranges[i];
        const auto size = static_cast<size_t>(end - begin);
        char* const copy = copies.get() + offsets[i];
        if (direction == Direction::to_host) {
          queue.copy(copy, begin, size, direction);
        } else if (written) {
          queue.copy(begin, copy, size, direction);
        }
      }
    } catch (...) {
      queue.wait(queue.last());  // for those that are enqueued: the copies go
      throw;
    }
    queue.wait(queue.last());
  };
  transfer(Direction::to_host);
  OwnBindings own(group, {&binding, 1});
  own.translate([&](void* address) -> void* {
    auto* const at = static_cast<char*>(address);
    for (size_t i = 0; i < ranges.size(); ++i) {
      if (ranges[i].begin <= at && at < ranges[i].end) {
        return copies.get() + offsets[i] + (at - ranges[i].begin);
      }
    }
    return address;  // of no elements
  });
  cpu::run(code, own.bindings());
  transfer(Direction::to_device);
}

}  // namespace hologram::cuda
