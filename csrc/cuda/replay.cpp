#include "cuda/replay.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <tuple>
#include <utility>

#include "cuda/context.h"
#include "cuda/word_hash.h"

namespace hologram::cuda {
namespace {

auto tied(const Product::Matrix& its) {
  return std::tie(its.data, its.leading, its.stride, its.by_columns);
}
auto tied(const Product& its) {
  return std::tuple_cat(std::tie(its.dtype, its.rows, its.columns, its.inner, its.count, its.bias,
                                 its.alpha, its.beta, its.tf32, its.sums, its.function),
                        tied(its.a), tied(its.b), tied(its.c), tied(its.out));
}

constexpr const char* kOfTables = "memory for tables of addresses";

// One warning in a process says it.
void warn(const Compiled& compiled, Status status, const char* what) {
  static std::atomic<bool> has_warned{false};
  if (has_warned.exchange(true)) return;
  std::string names;
  constexpr size_t kMostNamed = 4;
  for (size_t i = 0; i < std::min(compiled.plan.batches.size(), kMostNamed); ++i) {
    names += (i == 0 ? "" : "; ") + describe_pass(compiled, i);
  }
  std::fprintf(stderr,
               "torch_hologram: a program cannot be replayed as a CUDA graph, and is launched "
               "kernel by kernel, with the same results: %s failed: %s; its passes: %s\n",
               what, describe(status).c_str(), names.c_str());
}

}  // namespace

void Work::clear() noexcept {
  steps_.clear();
  arguments_.clear();
  products_.clear();
  calls_.clear();
  tables_.clear();
  table_places_.clear();
}

void Work::add(const KernelLaunch& launch, uint64_t tables) {
  // Numbers of eight bytes among the arguments lie at multiples of eight.
  arguments_.resize((arguments_.size() + 7) / 8 * 8);
  const size_t first = arguments_.size(), addresses = launch.addresses.size_bytes();
  arguments_.resize(first + addresses + launch.bytes.size());
  std::ranges::copy(std::as_bytes(launch.addresses), arguments_.data() + first);
  std::ranges::copy(launch.bytes, arguments_.data() + first + addresses);
  for (; tables != 0; tables &= tables - 1) {
    const size_t at = first + static_cast<size_t>(std::countr_zero(tables)) * sizeof(Address);
    table_places_.push_back(static_cast<uint32_t>(at));
  }
  steps_.push_back({Kind::kernel, launch.function, launch.blocks, launch.threads,
                    static_cast<uint32_t>(launch.addresses.size()),
                    static_cast<uint32_t>(launch.bytes.size()), static_cast<uint32_t>(first)});
}

void Work::add(const Product& product) {
  Step step;
  step.kind = Kind::product;
  step.first = static_cast<uint32_t>(products_.size());
  products_.push_back(product);
  steps_.push_back(step);
}

void Work::add(const std::shared_ptr<Call>& call, std::span<void* const> memory) {
  Step step;
  step.kind = Kind::call;
  step.first = static_cast<uint32_t>(calls_.size());
  calls_.push_back({call, {memory.begin(), memory.end()}});
  steps_.push_back(step);
}

std::byte* Work::add_tables(size_t bytes, size_t& begin) {
  begin = tables_.size();
  tables_.resize(begin + bytes);
  return tables_.data() + begin;
}

bool Work::is_like(const Work& other) const noexcept {
  return steps_ == other.steps_ && table_places_ == other.table_places_ &&
         tables_.size() == other.tables_.size() &&
         std::ranges::equal(
             products_, other.products_,
             [](const Product& a, const Product& b) { return tied(a) == tied(b); }) &&
         std::ranges::equal(calls_, other.calls_, [](const LaunchedCall& a, const LaunchedCall& b) {
           return a.is_like(b);
         });
}

KernelLaunch Work::launch_of(const Step& step) const noexcept {
  const std::byte* const arguments = arguments_.data() + step.first;
  return {step.function,
          step.blocks,
          step.threads,
          {reinterpret_cast<const Address*>(arguments), step.addresses},
          {arguments + step.addresses * sizeof(Address), step.bytes}};
}

void Work::place_tables(Address tables) noexcept {
  for (const uint32_t at : table_places_) {
    Address place = 0;
    std::memcpy(&place, arguments_.data() + at, sizeof place);
    place += tables;
    std::memcpy(arguments_.data() + at, &place, sizeof place);
  }
}

// Of all that is_like() compares, or a part of it.
uint64_t Work::hash() const noexcept {
  WordHash hash;
  for (const Step& its : steps_) {
    hash.add(its.function);
    hash.add(uint64_t{its.blocks} << 32 | its.threads);
  }
  for (const Product& its : products_) {
    for (const void* const memory :
         {static_cast<const void*>(its.a.data), static_cast<const void*>(its.b.data),
          static_cast<const void*>(its.c.data), static_cast<const void*>(its.out.data), its.bias}) {
      hash.add(memory);
    }
  }
  for (const LaunchedCall& its : calls_) {
    for (const void* const memory : its.memory) hash.add(memory);
  }
  return hash.get();
}

Replays::Replays(Products& products) : products_(products) {
  const char* const given = std::getenv("HOLOGRAM_REPLAY");
  is_on_ = given == nullptr || std::string_view(given) != "0";
}

Work* Replays::begin(const std::shared_ptr<const Compiled>& compiled) {
  if (!is_on_) return nullptr;
  if (known_.size() >= kMostKnown && !known_.contains(compiled.get())) {
    std::erase_if(known_, [](const auto& its) { return its.second.replays.empty(); });
  }
  current_ = &known_[compiled.get()];
  if (current_->compiled.lock() != compiled) {
    *current_ = {};
    current_->compiled = compiled;
  }
  if (current_->has_refusing_call && current_->replays.empty()) return nullptr;
  if (current_->skipped != 0) {
    --current_->skipped;
    return nullptr;
  }
  if (current_->times++ == 0) return nullptr;
  work_.clear();
  return &work_;
}

bool Replays::enqueue(const std::shared_ptr<const Compiled>& compiled, Stream stream,
                      const Stage& stage) {
  if (work_.size() < kLeastSteps) {
    give_up();
    return false;
  }
  Known& known = *current_;
  const uint64_t hash = work_.hash();
  const auto found = known.replays.find(hash);
  if (found != known.replays.end() && work_.is_like(found->second->work)) {
    known.misses = 0;
    return launch(found->second, stream, stage);
  }
  if (known.has_refusing_call) {
    give_up();
    return false;
  }
  if (std::ranges::find(known.seen, hash) != known.seen.end()) {
    known.misses = 0;
    return make(compiled, stream, hash, stage);
  }
  known.seen_last = (known.seen_last + 1) % known.seen.size();
  known.seen[known.seen_last] = hash;
  if (++known.misses >= known.seen.size()) give_up();
  return false;
}

bool Replays::launch(Place place, Stream stream, const Stage& stage) {
  Replay& replay = *place;
  work_.place_tables(replay.tables);
  Status status = update(replay);
  const char* what = "cuGraphExecKernelNodeSetParams";
  if (status == kSuccess && replay.work.tables_ != work_.tables_) {
    // Behind the launch before, which reads them, too.
    what = kOfTables;
    replay.work.tables_.swap(work_.tables_);
    status = send_tables(replay, stream, stage);
  }
  if (status == kSuccess) {
    what = "cuGraphLaunch";
    status = driver_.launch_graph(replay.executable, stream);
  }
  if (status != kSuccess) {
    const std::shared_ptr<const Compiled> compiled = replay.compiled;
    remove(place);
    fail(*compiled, status, what);
    return false;
  }
  replays_.splice(replays_.begin(), replays_, place);
  launched.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool Replays::make(const std::shared_ptr<const Compiled>& compiled, Stream stream, uint64_t hash,
                   const Stage& stage) {
  auto& of_program = current_->replays;
  if (const auto other = of_program.find(hash); other != of_program.end()) remove(other->second);
  if (replays_.size() == kMostReplays) remove(std::prev(replays_.end()));
  Replay replay;
  replay.compiled = compiled;
  replay.work = work_;
  replay.hash = hash;
  const char* what = kOfTables;
  Status status = make_tables(replay);
  if (status == kSuccess) status = send_tables(replay, stream, stage);
  if (status == kSuccess) {
    replay.work.place_tables(replay.tables);
    const CaptureGuard guard;
    what = "the capture of its launches";
    status = capture(replay);
    if (status == kSuccess) {
      what = "cuGraphInstantiate";
      status = driver_.instantiate_graph(&replay.executable, replay.graph, nullptr, nullptr, 0);
    }
  }
  if (status == kSuccess) {
    what = "cuGraphLaunch";
    status = driver_.launch_graph(replay.executable, stream);
  }
  if (status != kSuccess) {
    destroy(replay);
    if (!current_->has_refusing_call) fail(*compiled, status, what);
    return false;
  }
  replays_.push_front(std::move(replay));
  of_program[hash] = replays_.begin();
  made.fetch_add(1, std::memory_order_relaxed);
  launched.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// In memory of its own.
Status Replays::make_tables(Replay& replay) {
  if (replay.work.tables_.empty()) return kSuccess;
  const CaptureGuard guard;
  return driver_.allocate(&replay.tables, replay.work.tables_.size());
}

Status Replays::send_tables(Replay& replay, Stream stream, const Stage& stage) {
  const std::vector<std::byte>& tables = replay.work.tables_;
  if (tables.empty()) return kSuccess;
  const CaptureGuard guard;
  std::byte* const staged = stage(tables.size());
  if (staged != nullptr) std::ranges::copy(tables, staged);
  const std::byte* const from = staged != nullptr ? staged : tables.data();
  return driver_.copy_to_device(replay.tables, from, tables.size(), stream);
}

// Launches on a stream that is captured; the node of each is what the next one comes behind.
Status Replays::capture(Replay& replay) {
  if (stream_ == nullptr) {
    const Status status = driver_.create_stream(&stream_, kStreamNonBlocking, 0);
    if (status != kSuccess) return status;
  }
  Status status = driver_.begin_capture(stream_, CaptureMode::relaxed);
  if (status != kSuccess) return status;
  Work& work = replay.work;
  for (const Work::Step& step : work.steps_) {
    GraphNode node = nullptr;
    if (step.kind == Work::Kind::product) {
      try {
        if (!products_.enqueue(work.products_[step.first], stream_)) status = kCannotBeCaptured;
      } catch (const std::exception&) {
        status = kCannotBeCaptured;
      }
    } else if (step.kind == Work::Kind::call) {
      const Work::LaunchedCall& its = work.calls_[step.first];
      try {
        its.body->launch(stream_, its.memory, &replay.kept.emplace_back());
      } catch (const std::exception& error) {
        status = kCannotBeCaptured;
        const auto* const of_call = dynamic_cast<const CallError*>(&error);
        // What has no memory now may have some when it comes again.
        current_->has_refusing_call =
            of_call == nullptr || of_call->kind != CallError::Kind::out_of_memory;
      }
    } else {
      const LaunchNode kernel(work.launch_of(step));
      status = driver_.launch(step.function, step.blocks, 1, 1, step.threads, 1, 1, 0, stream_,
                              kernel.get().parameters, nullptr);
      CaptureStatus captured{};
      uint64_t id = 0;
      Graph graph = nullptr;
      const GraphNode* last = nullptr;
      size_t count = 0;
      if (status == kSuccess) {
        status = driver_.capture_info(stream_, &captured, &id, &graph, &last, &count);
      }
      if (status == kSuccess && count == 1) node = *last;
      if (status == kSuccess && node == nullptr) status = kCannotBeCaptured;
    }
    if (status != kSuccess) break;
    replay.nodes.push_back(node);
  }
  const Status end = driver_.end_capture(stream_, &replay.graph);
  return status != kSuccess ? status : end;
}

// Sets the arguments of kernels whose are others than those of the graph.
Status Replays::update(Replay& replay) {
  Work& kept = replay.work;
  if (kept.arguments_ == work_.arguments_) return kSuccess;
  for (size_t i = 0; i < kept.steps_.size(); ++i) {
    const Work::Step& step = kept.steps_[i];
    if (step.kind != Work::Kind::kernel) continue;
    const std::span<std::byte> now = work_.arguments_of(step), before = kept.arguments_of(step);
    if (std::ranges::equal(now, before)) continue;
    const LaunchNode kernel(work_.launch_of(step));
    const Status status =
        driver_.set_kernel_node(replay.executable, replay.nodes[i], &kernel.get());
    if (status != kSuccess) return status;
    std::ranges::copy(now, before.begin());
    updated.fetch_add(1, std::memory_order_relaxed);
  }
  return kSuccess;
}

void Replays::fail(const Compiled& compiled, Status status, const char* what) noexcept {
  give_up();
  if (loses_context(status)) return;  // whatever is called next says so
  failed.fetch_add(1, std::memory_order_relaxed);
  try {
    warn(compiled, status, what);
  } catch (const std::exception&) {  // no memory for a warning
  }
}

// What runs goes on: the driver keeps it until it is done.
void Replays::destroy(Replay& replay) noexcept {
  const CaptureGuard guard;
  if (replay.executable != nullptr) driver_.destroy_executable(replay.executable);
  if (replay.graph != nullptr) driver_.destroy_graph(replay.graph);
  if (replay.tables != 0) driver_.free(replay.tables);  // waits for the device
  replay.kept.clear();
}

void Replays::remove(Place place) noexcept {
  const auto found = known_.find(place->compiled.get());
  if (found != known_.end()) found->second.replays.erase(place->hash);
  destroy(*place);
  replays_.erase(place);
}

void Replays::free() noexcept {
  while (!replays_.empty()) remove(replays_.begin());
  known_.clear();
  if (stream_ != nullptr) driver_.destroy_stream(stream_);
  stream_ = nullptr;
}

}  // namespace hologram::cuda
