#include "atlas/frame.h"

#include <algorithm>
#include <new>
#include <string_view>
#include <utility>

#include "atlas/block_state.h"
#include "atlas/call.h"
#include "atlas/error.h"
#include "atlas/overlap.h"
#include "atlas/queue.h"

namespace hologram {
namespace {

// Memory of the host for the operands of a call. A thread keeps some: to take and give back as much
// as each call has, of all sizes, would leave holes in everybody's memory.
class HostCopies {
 public:
  explicit HostCopies(size_t bytes) : bytes_(bytes) {
    if (kept.bytes < bytes) {
      kept = {};
      kept.memory.reset(static_cast<char*>(::operator new(bytes, std::align_val_t(kAlignment))));
      kept.bytes = bytes;
    }
  }
  ~HostCopies() {
    if (bytes_ > kMostKept) kept = {};
  }
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  char* data() const noexcept { return kept.memory.get(); }
  static size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

 private:
  static constexpr size_t kAlignment = 64;  // as the pool's
  static constexpr size_t kMostKept = size_t{16} << 20;
  struct Free {
    void operator()(char* memory) const { ::operator delete(memory, std::align_val_t(kAlignment)); }
  };
  struct Kept {
    std::unique_ptr<char, Free> memory;
    size_t bytes = 0;
  };
  static thread_local Kept kept;
  const size_t bytes_;
};
thread_local HostCopies::Kept HostCopies::kept;

}  // namespace

std::string operation_names(const Group& group) {
  constexpr size_t kMostNames = 8;
  std::vector<std::string_view> names;
  for (const Node& node : group.nodes) {
    const OpInfo& info = op_info(node.op);
    std::string_view name;
    switch (node.kind) {
      case NodeKind::compute: name = info.name; break;
      case NodeKind::fold: name = info.fold; break;
      case NodeKind::scan: name = info.scan; break;
      case NodeKind::pick: name = "pick"; break;
      case NodeKind::random: name = draw_name(static_cast<Draw>(node.b)); break;
      default: continue;
    }
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  if (names.empty()) names.push_back("copy");
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i) {
    if (i != 0) text += ", ";
    text += names[i];
  }
  return text + (names.size() > kMostNames ? ", ..." : "");
}

std::string operation_names(const Batch& batch) {
  return batch.is_call() ? batch.name : operation_names(batch.group);
}

std::shared_ptr<const Failure> failure_of(const std::exception& error) {
  using Kind = CallError::Kind;
  const auto* const call = dynamic_cast<const CallError*>(&error);
  const Kind kind = call != nullptr ? call->kind : Kind::other;
  const bool out_of_memory = kind == Kind::out_of_memory ||
                             dynamic_cast<const OutOfMemory*>(&error) != nullptr ||
                             dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  return std::make_shared<const Failure>(
      Failure{error.what(), out_of_memory, kind == Kind::out_of_range,
              dynamic_cast<const AboutDevice*>(&error) != nullptr});
}

bool covers(const Program& program, uint16_t access) {
  const AccessKey& key = program.accesses[access];
  return key.layout == Layout::dense && program.places[access].offset == 0 &&
         static_cast<size_t>(program.counts[key.space]) * dtype_size(key.dtype) >=
             slot_bytes(program, key.slot);
}

void Frame::begin(const Plan& plan, const Traversals& traversals, const Program& program,
                  Watcher* watcher, Failures missing) {
  plan_ = &plan;
  traversals_ = &traversals;
  program_ = &program;
  watcher_ = watcher;
  failures = std::move(missing);
  raised = nullptr;
  bytes_moved = 0;
  done_.clear();
}

Frame::Pass::Pass(Frame& frame, size_t number)
    : frame_(frame),
      number_(number),
      batch_(&frame.plan_->batches[number]),
      rest_(frame.failures.empty() ? std::nullopt : frame.what_can_run(*batch_)),
      watched_(frame.watcher_,
               [&] { return "hologram::pass (" + operation_names(*batch_) + ")"; }) {
  if (rest_) [[unlikely]]
    batch_ = &*rest_;
  if (batch_->is_call()) {
    frame.bind_call(*batch_);
    return;
  }
  frame.bind(*batch_, (*frame.traversals_)[number]);
}

void Frame::Pass::call() {
  if (batch_->members.empty()) return;  // what it reads is missing
  frame_.program_->bodies[batch_->call]->run(addresses());
}

std::optional<Product> Frame::Pass::product() const {
  if (batch_->members.empty()) return std::nullopt;  // what it reads is missing
  return frame_.program_->bodies[batch_->call]->product(addresses());
}

std::optional<StridedCopy> Frame::Pass::strided_copy() const {
  if (batch_->members.empty()) return std::nullopt;  // what it reads is missing
  auto copy = frame_.program_->bodies[batch_->call]->strided_copy(addresses());
  if (copy) copy->is_watched = frame_.is_watched();
  return copy;
}

const std::shared_ptr<Call>* Frame::Pass::launched() const noexcept {
  if (!is_call() || batch_->members.empty()) return nullptr;  // or what it reads is missing
  const std::shared_ptr<Call>& body = frame_.program_->bodies[batch_->call];
  return body->is_launched() ? &body : nullptr;
}

std::span<void* const> Frame::Pass::addresses() const noexcept {
  return {frame_.operands_.data(), frame_.operands_.size()};
}

const Epilogue* Frame::Pass::epilogue() const {
  const auto& all = frame_.plan_->epilogues;
  const auto its = std::ranges::find(all, number_, &Epilogue::call);
  return its != all.end() ? &*its : nullptr;
}

std::optional<Product> Frame::Pass::product_with_epilogue(const Product& product) const {
  const Epilogue* const its = epilogue();
  if (its == nullptr || !frame_.failures.empty()) return std::nullopt;
  const Program& program = *frame_.program_;
  const auto address = [&](uint16_t access) {
    return frame_.bases[program.accesses[access].slot] + program.places[access].offset;
  };
  const AccessKey& result = program.accesses[its->result];
  const Product::Matrix& out = product.out;
  // All that the group reads, and as that lies in memory.
  if (product.dtype != result.dtype || out.data != address(its->result) ||
      out.leading != product.columns ||
      (product.count > 1 && out.stride != product.rows * out.leading) ||
      product.count * product.rows * product.columns != program.counts[result.space]) {
    return std::nullopt;
  }
  Product with = product;
  with.function = Product::Function::gelu_tanh;
  with.out.data = address(its->written);
  return with;
}

void Frame::Pass::note_epilogue() {
  frame_.done_.resize(frame_.plan_->batches.size());
  frame_.done_[epilogue()->group] = true;
}

std::vector<Frame::Pass::Touched> Frame::Pass::touched_by_call() const {
  std::vector<Touched> all;
  const Program& program = *frame_.program_;
  for (const auto& member : batch_->members) {
    const size_t reads = program.reads_of(program.calls[batch_->call]).size();
    for (size_t i = 0; i < member.accesses.size(); ++i) {
      const AccessKey& key = program.accesses[member.accesses[i]];
      const auto count = static_cast<size_t>(program.counts[key.space]);
      all.push_back(
          {static_cast<char*>(frame_.operands_[i]), count * dtype_size(key.dtype), i >= reads});
    }
  }
  return all;
}

void Frame::Pass::call_on_copies(Queue& queue) {
  if (batch_->members.empty()) return;
  const auto touched = touched_by_call();
  std::vector<size_t> offsets;
  size_t size = 0;
  for (const Touched& it : touched) {
    // What is read and written has one copy.
    const auto same = std::ranges::find_if(touched, [&](const Touched& other) {
      return other.memory == it.memory && other.bytes == it.bytes;
    });
    const auto first = static_cast<size_t>(same - touched.begin());
    const bool fresh = first == offsets.size();
    offsets.push_back(fresh ? size : offsets[first]);
    if (fresh) size += HostCopies::aligned(it.bytes);
  }
  const HostCopies copies(size);
  std::vector<void*> memory;
  for (const size_t offset : offsets) memory.push_back(copies.data() + offset);
  const auto copy_all = [&](bool written) {
    try {
      for (size_t i = 0; i < touched.size(); ++i) {
        const auto& [device, bytes, writes] = touched[i];
        if (writes != written) continue;
        if (written) {
          queue.copy(device, memory[i], bytes, Direction::to_device);
        } else {
          queue.copy(memory[i], device, bytes, Direction::to_host);
        }
      }
    } catch (...) {
      queue.wait(queue.last());  // for those that are enqueued: the copies go
      throw;
    }
    queue.wait(queue.last());
  };
  copy_all(false);
  frame_.program_->bodies[batch_->call]->run(memory);
  copy_all(true);
}

void Frame::Pass::fail(const std::exception& error) {
  const auto failure = failure_of(error);
  if (!frame_.raised) frame_.raised = failure;
  frame_.failures.resize(frame_.program_->slots.size());
  for (const auto& member : batch_->members) frame_.mark_stores(*batch_, member, failure);
}

// Says of the blocks that a member of a batch stores to that they failed, or with null that they
// are computed, where the store covers them.
void Frame::mark_stores(const Batch& batch, const Batch::Member& member,
                        const std::shared_ptr<const Failure>& failure) {
  const auto mark = [&](uint16_t access) {
    if (failure || covers(*program_, access)) {
      failures[program_->accesses[access].slot] = failure;
    }
  };
  if (batch.is_call()) {
    for (const uint16_t access : program_->writes_of(program_->calls[batch.call])) mark(access);
  }
  for (const Node& node : batch.group.nodes) {
    if (node.kind == NodeKind::store) mark(member.accesses[node.b]);
  }
}

// The members that load nothing that is missing. What the others store fails.
std::optional<Batch> Frame::what_can_run(const Batch& batch) {
  Batch result{batch.group, {}, batch.call, batch.name};
  for (const auto& member : batch.members) {
    std::shared_ptr<const Failure> failure;
    const auto look_at = [&](uint16_t access) {
      if (!failure) failure = failures[program_->accesses[access].slot];
    };
    if (batch.is_call()) {
      for (const uint16_t access : program_->reads_of(program_->calls[batch.call])) look_at(access);
    }
    for (const Node& node : batch.group.nodes) {
      if (node.kind == NodeKind::load) look_at(member.accesses[node.a]);
    }
    if (!failure) result.members.push_back(member);
    mark_stores(batch, member, failure);
  }
  return result;
}

void Frame::bind_call(const Batch& batch) {
  bindings_.clear();
  operands_.clear();
  for (const auto& member : batch.members) {
    for (const uint16_t access : member.accesses) {
      operands_.push_back(bases[program_->accesses[access].slot] + program_->places[access].offset);
    }
  }
}

void Frame::bind(const Batch& batch, const std::vector<uint8_t>& traversals) {
  bindings_.clear();
  operands_.clear();
  immediates_.clear();
  strides_.clear();
  const Program& program = *program_;
  for (const auto& member : batch.members) {
    std::span<const int64_t> sizes;
    if (member.shape != 0) sizes = program.shapes[member.shape].sizes;
    const int64_t count = program.counts[member.space];
    for (size_t k = 0; k < member.accesses.size(); ++k) {
      const uint16_t access = member.accesses[k];
      const AccessKey& key = program.accesses[access];
      const Place& place = program.places[access];
      operands_.push_back(bases[key.slot] + place.offset);
      bytes_moved += traversals[k] * footprint(program, access);
      if (sizes.empty()) continue;
      const int64_t* own =
          key.layout == Layout::strided ? program.strides.data() + place.stride : nullptr;
      for (size_t d = 0; d < sizes.size(); ++d) strides_.push_back(own != nullptr ? own[d] : 0);
    }
    for (const uint16_t number : member.immediates) {
      immediates_.push_back(program.immediates[number]);
    }
    Binding binding{nullptr, nullptr, count, static_cast<int>(sizes.size()), sizes.data(), nullptr};
    if (member.structure != 0) {
      const Structure& structure = program.structures[member.structure];
      binding.planes = program.counts[structure.planes];
      binding.rows = program.counts[structure.rows];
      binding.columns = program.counts[structure.columns];
    }
    bindings_.push_back(binding);
  }
  // Only now they have stopped moving.
  size_t operand = 0, immediate = 0, stride = 0;
  for (size_t i = 0; i < bindings_.size(); ++i) {
    const auto& member = batch.members[i];
    Binding& binding = bindings_[i];
    binding.operands = operands_.data() + operand;
    binding.immediates = immediates_.data() + immediate;
    binding.strides = strides_.data() + stride;
    operand += member.accesses.size();
    immediate += member.immediates.size();
    stride += member.accesses.size() * static_cast<size_t>(binding.rank);
  }
}

}  // namespace hologram
