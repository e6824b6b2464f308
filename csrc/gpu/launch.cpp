#include "gpu/launch.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "atlas/error.h"
#include "gpu/cold.h"

namespace hologram::gpu {
namespace {

int64_t divided_up(int64_t n, int64_t by) {
  return (n + by - 1) / by;
}

// A row is folded by several blocks from here on, where there are too few rows.
constexpr int64_t kClassesOfLongRow = 4;
// Threads join partial results of so many chunks, or more.
constexpr int64_t kLeastChunks = 4;
// Shorter rows are scanned by a thread each.
constexpr int64_t kLeastTiled = 12;
// Of a block that scans many of them.
constexpr int64_t kThreadsOfTiledRow = (kWarp + kTileThreads) / 32;
// Partial results that a thread joins, one after the other: a power of two.
constexpr int64_t kMostJoined = 64;

}  // namespace

// Makes the launches of a run.
class Planning {
 public:
  // `many`: the launches are to be parts of larger ones (`united`).
  Planning(const GroupCode& code, const Steps& steps, const Binding& binding, bool many = false)
      : code_(code), target_(code.target_), steps_(steps), binding_(binding), many_(many) {}

  Launches run() {
    place_operands();
    collapse();
    for (size_t i = 0; i < steps_.list.size(); ++i) plan(i);
    return std::move(result_);
  }

 private:
  // The numbers of a launch.
  struct Work {
    int64_t threads = 0;    // as the kernel's parameter says it
    int64_t rows = 1;       // in a plane of the domain
    int64_t parts = 0;      // partial results
    int64_t part_rows = 0;  // rows of one
    int64_t joined = 0;     // partial results after some of them have joined
    int64_t blocks = 0;
    unsigned block = 0;
  };

  void place_operands() {
    for (size_t i = 0; i < steps_.operands.size(); ++i) {
      const Operand& its = steps_.operands[i];
      if (i < steps_.given) {
        operands_.push_back({binding_.operands[i], 0});
      } else {
        operands_.push_back(
            {nullptr, scratch(element_count(its, binding_), dtype_size(its.dtype))});
      }
    }
  }
  size_t scratch(int64_t count, size_t size) {
    const size_t at = result_.scratch_bytes;
    result_.scratch_bytes += scratch_size(static_cast<size_t>(count) * size);
    return at;
  }

  // The iteration space with as few dimensions as the strides of the strided operands allow.
  void collapse() {
    wide_ = binding_.count > target_.most_narrow;
    const auto rank = static_cast<size_t>(binding_.rank);
    std::vector<size_t> strided;
    for (size_t i = 0; i < steps_.given; ++i) {
      if (steps_.operands[i].layout == Layout::strided) strided.push_back(i);
    }
    strides_.resize(steps_.given);
    if (strided.empty()) return;
    const auto stride = [&](size_t operand, size_t d) {
      return binding_.strides[operand * rank + d];
    };
    for (size_t d = 0; d < rank; ++d) {
      const int64_t size = binding_.sizes[d];
      if (size == 1) continue;
      const bool joins = !sizes_.empty() && std::ranges::all_of(strided, [&](size_t i) {
        return strides_[i].back() == stride(i, d) * size;
      });
      if (joins) {
        sizes_.back() *= size;
      } else {
        sizes_.push_back(size);
      }
      for (const size_t i : strided) {
        if (joins) {
          strides_[i].back() = stride(i, d);
        } else {
          strides_[i].push_back(stride(i, d));
        }
      }
    }
    for (const size_t i : strided) {
      const auto bytes = static_cast<int64_t>(dtype_size(steps_.operands[i].dtype));
      int64_t reach = 0;
      for (size_t d = 0; d < sizes_.size(); ++d) {
        if (strides_[i][d] % bytes != 0) throw Error("a stride of a part of an element");
        strides_[i][d] /= bytes;
        reach += std::abs(strides_[i][d]) * (sizes_[d] - 1);
      }
      wide_ = wide_ || reach > target_.most_narrow;
    }
    if (sizes_.size() > UINT8_MAX) throw Error("a space of too many dimensions");
  }

  Variant variant() const {
    Variant its;
    its.wide = wide_ && !target_.cold;  // whose numbers all have 64 bits
    its.many = many_;
    return its;
  }
  int64_t row_count() const { return binding_.planes * binding_.rows; }
  int64_t classes_of_row() const {
    return divided_up(binding_.columns, class_elements(steps_.compute_type));
  }

  void plan(size_t step) {
    switch (steps_.list[step].skeleton) {
      case Skeleton::elements: return elements(step);
      case Skeleton::rows: return rows(step);
      case Skeleton::classes: return classes(step);
      case Skeleton::fold_down: return fold_down(step);
      case Skeleton::scan: return scan(step);
    }
  }

  // That leave no processor of a large GPU long without work, where threads have much of it.
  int64_t full_threads() const { return 4 * target_.enough_threads; }

  // So many threads, in blocks of the usual size, or of the kernel's own.
  void spread_threads(Work& work, int64_t threads, unsigned own = 0) const {
    const int64_t most = (own != 0 ? std::min(own, target_.threads) : target_.threads) / kWarp;
    const int64_t warps = many_ ? most : std::min(divided_up(threads, kWarp), most);
    work.block = kWarp * static_cast<unsigned>(warps);
    work.blocks = divided_up(threads, work.block);
  }

  // Whether all that a thread reads and writes at once begins at a multiple of 16 bytes.
  bool is_aligned(const Step& step, unsigned vector) const {
    if (vector == 1) return false;
    if (steps_.structured && binding_.columns % vector != 0) return false;
    return std::ranges::all_of(step.nodes, [&](const Node& node) {
      if (!has_operand(node)) return true;
      const uint16_t operand = operand_of(node);
      if (steps_.operands[operand].layout == Layout::scalar) return true;
      return reinterpret_cast<uintptr_t>(operands_[operand].address) % kMostAlignment == 0;
    });
  }

  // Of as many elements as a thread has side by side.
  bool has_row_vectors(const Step& step) const {
    return !target_.cold && is_aligned(step, accumulators_of(steps_.compute_type) / kWarp);
  }

  void elements(size_t step) {
    const Step& its = steps_.list[step];
    Variant variant = this->variant();
    unsigned vector = vector_of(steps_, step);
    variant.vectors = !target_.cold && is_aligned(its, vector);
    if (!variant.vectors) vector = target_.cold ? cold_elements(steps_.compute_type) : 1;
    const bool strided = std::ranges::any_of(its.nodes, [&](const Node& node) {
      return has_operand(node) && steps_.operands[operand_of(node)].layout == Layout::strided;
    });
    if (strided) variant.rank = static_cast<uint8_t>(sizes_.size());
    Work work;
    work.threads = binding_.count;
    if (steps_.structured) {
      work.threads = spread_count(its.domain, {binding_.planes, binding_.rows, binding_.columns});
      if ((its.domain & kMiddle) != 0) work.rows = binding_.rows;
    }
    const Kernel& kernel = code_.kernel(steps_, step, variant);
    spread_threads(work, divided_up(work.threads, vector * kernel.vectors), kernel.threads);
    add(kernel, work);
  }

  void rows(size_t step) {
    const bool folds = std::ranges::any_of(steps_.list[step].nodes, is_row_fold);
    Variant variant = this->variant();
    variant.several = classes_of_row() > 1 && !target_.cold;
    variant.vectors = has_row_vectors(steps_.list[step]);
    const bool is_few = row_count() * kWarp < full_threads();
    if (folds && is_few && variant.several) variant.team = Team::block;
    const Kernel& kernel = code_.kernel(steps_, step, variant);
    Work work;
    work.threads = row_count();
    work.rows = binding_.rows;
    if (variant.team == Team::block) {
      const int64_t most = most_threads(steps_.list[step], steps_.compute_type) / kWarp;
      work.block = kWarp * static_cast<unsigned>(std::min(classes_of_row(), most));
      work.blocks = row_count();
    } else {
      unsigned block = kernel.threads;
      if (kernel.enough != 0) {
        const int64_t rows = std::max<int64_t>(1, kernel.enough / binding_.columns);
        block = static_cast<unsigned>(std::min<int64_t>(block, rows * kWarp));
      }
      spread_threads(work, row_count() * kWarp, block);
    }
    add(kernel, work);
  }

  void classes(size_t step) {
    Variant variant = this->variant();
    variant.vectors = has_row_vectors(steps_.list[step]);
    Work work;
    work.rows = binding_.rows;
    work.parts = classes_of_row();
    if (target_.cold) {
      work.threads = row_count() * work.parts;
      spread_threads(work, work.threads * kWarp);
    } else {
      // Power of two, so that what a block joins is a part of the whole tree.
      int64_t warps = 1;
      while (warps < work.parts && 2 * warps * kWarp <= target_.threads) warps *= 2;
      work.block = kWarp * static_cast<unsigned>(warps);
      work.parts = divided_up(work.parts, warps);
      work.blocks = row_count() * work.parts;
      if (target_.counts && row_count() <= static_cast<int64_t>(kCounters)) {
        return folds_by_last_block(step, variant, work);
      }
    }
    folds_in_parts(step, variant, work, row_count());
  }

  void fold_down(size_t step) {
    Variant variant = this->variant();
    variant.vectors = has_row_vectors(steps_.list[step]);
    Work work;
    work.rows = binding_.rows;
    const int64_t results = binding_.planes * binding_.columns;
    const int64_t of_thread = variant.vectors ? accumulators_of(steps_.compute_type) / kWarp : 1;
    // A part is a power of two of chunks, so that joined it is a part of the whole tree.
    const int64_t chunks = divided_up(binding_.rows, kFoldRows);
    const int64_t parts_wanted = divided_up(full_threads() * of_thread, results);
    int64_t part_chunks = kLeastChunks;
    while (divided_up(chunks, part_chunks) > parts_wanted) part_chunks *= 2;
    work.parts = divided_up(chunks, part_chunks);
    work.part_rows = part_chunks * kFoldRows;
    work.threads = results / of_thread * work.parts;
    spread_threads(work, work.threads);
    if (work.parts > 1) return folds_in_parts(step, variant, work, results);
    add(step, variant, work);
  }

  size_t folds_of(size_t step) const {
    return static_cast<size_t>(std::ranges::count_if(
        steps_.list[step].nodes, [](const Node& node) { return node.kind == NodeKind::fold; }));
  }
  void make_parts(size_t step, int64_t count) {
    for (size_t i = 0; i < folds_of(step); ++i) {
      parts_.push_back(scratch(count, dtype_size(own_dtype(steps_.compute_type))));
    }
  }
  // Partial results, which the last block of a row joins.
  void folds_by_last_block(size_t step, Variant variant, Work work) {
    parts_.clear();
    make_parts(step, row_count() * work.parts);
    variant.parts = true;
    variant.team = Team::block;
    work.part_rows = 1;
    while (work.part_rows * work.block < work.parts) work.part_rows *= 2;
    add(step, variant, work);
  }

  // Partial results, and then what joins them.
  void folds_in_parts(size_t step, Variant variant, Work work, int64_t results) {
    parts_.clear();
    make_parts(step, results * work.parts);
    variant.parts = true;
    add(step, variant, work);
    variant.vectors = false;
    variant.joins = true;
    // Of rows, of which there are few, a block takes as many as its threads can.
    const int64_t most = most_threads(steps_.compute_type);
    const bool by_block = steps_.list[step].skeleton == Skeleton::classes && !target_.cold;
    work.part_rows = kMostJoined;
    while (work.parts > (by_block ? most * kMostJoined : kMostJoined)) {
      work.joined = divided_up(work.parts, kMostJoined);
      make_parts(step, results * work.joined);
      work.threads = results * work.joined;
      spread_threads(work, work.threads);
      add(step, variant, work);
      work.parts = work.joined;
      parts_.erase(parts_.begin(), parts_.begin() + static_cast<ptrdiff_t>(folds_of(step)));
    }
    variant.parts = false;
    work.threads = results;
    spread_threads(work, results);
    if (by_block) {
      variant.team = Team::block;
      work.block = kWarp * static_cast<unsigned>(divided_up(std::min(work.parts, most), kWarp));
      work.blocks = results;
      work.part_rows = 1;
      while (work.part_rows * work.block < work.parts) work.part_rows *= 2;
    }
    add(step, variant, work);
  }

  void scan(size_t step) {
    Work work;
    work.rows = binding_.rows;
    Variant variant = this->variant();
    const bool down = steps_.list[step].axis == kMiddle;
    work.threads = down ? binding_.planes * binding_.columns : row_count();
    if (is_tiled(steps_.list[step]) && !target_.cold && binding_.columns >= kLeastTiled) {
      const bool is_few = row_count() * kThreadsOfTiledRow < target_.enough_threads;
      variant.team = is_few ? Team::block : Team::warp;
      work.block = kWarp + kTileThreads;
      work.blocks = divided_up(row_count(), scan_tile(variant.team, true).rows);
    } else {
      variant.team = Team::thread;
      spread_threads(work, work.threads);
    }
    add(step, variant, work);
  }

  void add(size_t step, const Variant& variant, const Work& work) {
    add(code_.kernel(steps_, step, variant), work);
  }
  void add(const Kernel& kernel, const Work& work) {
    if (work.blocks > INT32_MAX) throw Error("a launch of too many blocks");
    Launch launch{&kernel, static_cast<uint32_t>(work.blocks), work.block, {}, {}};
    for (const Buffer& buffer : kernel.buffers) {
      launch.arguments.push_back(buffer.is_counters ? Argument{.is_counters = true}
                                 : buffer.is_part   ? Argument{nullptr, parts_[buffer.index]}
                                                    : operands_[buffer.index]);
    }
    if (target_.cold) launch.arguments.resize(kColdArguments, {nullptr, 0, true});
    launch.parameters = parameters(kernel, work);
    result_.list.push_back(std::move(launch));
  }

  std::vector<std::byte> parameters(const Kernel& kernel, const Work& work) const {
    std::vector<std::byte> bytes;
    size_t most = 1;
    for (const Parameter& its : kernel.parameters) {
      const uint64_t value = value_of(its, work);
      const auto* const from = reinterpret_cast<const std::byte*>(&value);  // of little endian
      bytes.insert(bytes.end(), from, from + its.bytes);
      most = std::max<size_t>(most, its.bytes);
    }
    bytes.resize((bytes.size() + most - 1) / most * most);
    if (bytes.size() > kMostParameterBytes) throw Error("a launch of too many parameters");
    if (target_.cold) bytes.resize(kMostParameterBytes);  // whatever the kernel reads of them
    return bytes;
  }
  uint64_t value_of(const Parameter& its, const Work& work) const {
    const auto number = [](int64_t n) { return static_cast<uint64_t>(n); };
    switch (its.kind) {
      case Parameter::Kind::threads: return number(work.threads);
      case Parameter::Kind::columns: return number(binding_.columns);
      case Parameter::Kind::rows: return number(work.rows);
      case Parameter::Kind::parts: return number(work.parts);
      case Parameter::Kind::part_rows: return number(work.part_rows);
      case Parameter::Kind::joined: return number(work.joined);
      case Parameter::Kind::size: return number(sizes_[its.dimension]);
      case Parameter::Kind::stride: return number(strides_[its.index][its.dimension]);
      case Parameter::Kind::immediate:
      case Parameter::Kind::bits: break;
    }
    return binding_.immediates[its.index];
  }

  const GroupCode& code_;
  const Target& target_;
  const Steps& steps_;
  const Binding& binding_;
  const bool many_;
  std::vector<int64_t> sizes_;
  std::vector<std::vector<int64_t>> strides_;  // of each operand, in elements
  bool wide_ = false;
  std::vector<Argument> operands_;
  std::vector<size_t> parts_;  // of a step's folds, the places of partial results
  Launches result_;
};

namespace {

void check(const Group& group, const Target& target) {
  const auto require = [](bool holds, const char* why) {
    if (!holds) throw Error(std::string("cannot compute the group on the device: ") + why);
  };
  for (const Operand& operand : group.operands) {
    require(operand.dtype != DType::c64 && operand.dtype != DType::c128, "a complex operand");
  }
  require(target.has_f64 || group.compute_type != ComputeType::f64, "it has no f64");
  if (target.threads > kMostThreads) throw Error("a target of too large blocks");
}

void append(std::vector<std::byte>& to, uint64_t number) {
  const auto* const from = reinterpret_cast<const std::byte*>(&number);  // of little endian
  to.insert(to.end(), from, from + sizeof number);
}

// Launches of a kernel of many tensors as one.
Launch united(const std::vector<const Launch*>& some) {
  Launch all{some.front()->kernel, 0, some.front()->threads, {{nullptr, 0, false, true}}, {}};
  uint64_t blocks = 0;
  for (const Launch* const its : some) {
    for (const Argument& argument : its->arguments) {
      append(all.table, reinterpret_cast<uintptr_t>(argument.address));
    }
    append(all.table, blocks);
    all.table.insert(all.table.end(), its->parameters.begin(), its->parameters.end());
    all.table.resize((all.table.size() + 7) / 8 * 8);
    blocks += its->blocks;
  }
  if (blocks > INT32_MAX) throw Error("a launch of too many blocks");
  all.blocks = static_cast<uint32_t>(blocks);
  const auto count = static_cast<uint32_t>(some.size());
  const auto* const from = reinterpret_cast<const std::byte*>(&count);
  all.parameters.assign(from, from + sizeof count);
  return all;
}

// The same run after another one: its scratch memory is behind that one's.
void append(Launches& to, Launches&& from) {
  for (Launch& launch : from.list) {
    for (Argument& its : launch.arguments) {
      if (its.address == nullptr) its.scratch += to.scratch_bytes;
    }
    to.list.push_back(std::move(launch));
  }
  to.scratch_bytes += from.scratch_bytes;
}

}  // namespace

GroupCode::GroupCode(const Group& group, const Target& target)
    : target_((check(group, target), target)), steps_(split(group, false, most_buffers())) {
  if (std::ranges::any_of(group.nodes, is_row_fold)) {
    of_long_rows_.emplace(split(group, true, most_buffers()));
  }
}

// A cold kernel's program is one of them.
size_t GroupCode::most_buffers() const {
  return target_.cold ? kMostBuffers - 1 : kMostBuffers;
}

Launches GroupCode::launches(const Binding& binding) const {
  if (binding.count == 0) return {};
  const int64_t of_class = class_elements(steps_.compute_type);
  // Threads of a row's block, if no row has more than one.
  const int64_t of_rows = binding.planes * binding.rows * most_threads(steps_.compute_type);
  const bool is_long = of_long_rows_.has_value() &&
                       binding.columns > kClassesOfLongRow * of_class &&
                       of_rows < target_.enough_threads;
  return Planning(*this, is_long ? *of_long_rows_ : steps_, binding).run();
}

bool GroupCode::can_have_many() const {
  return !target_.cold && target_.tables && steps_.given == steps_.operands.size() &&
         std::ranges::all_of(
             steps_.list, [](const Step& step) { return step.skeleton == Skeleton::elements; }) &&
         std::ranges::none_of(steps_.operands, [](const Operand& operand) {
           return operand.layout == Layout::strided;
         });
}

Launches GroupCode::launches(std::span<const Binding> bindings) const {
  Launches result;
  if (bindings.size() == 1 || !can_have_many()) {
    for (const Binding& binding : bindings) append(result, launches(binding));
    return result;
  }
  std::vector<Launches> parts;
  for (const Binding& binding : bindings) {
    if (binding.count != 0) parts.push_back(Planning(*this, steps_, binding, true).run());
  }
  for (size_t step = 0; step < steps_.list.size() && !parts.empty(); ++step) {
    std::vector<std::vector<const Launch*>> by_kernel;
    for (const Launches& its : parts) {
      const Launch* const one = &its.list[step];
      const auto same = std::ranges::find_if(
          by_kernel, [&](const auto& some) { return some.front()->kernel == one->kernel; });
      if (same == by_kernel.end()) {
        by_kernel.push_back({one});
      } else {
        same->push_back(one);
      }
    }
    for (const auto& some : by_kernel) result.list.push_back(united(some));
  }
  return result;
}

const Kernel& GroupCode::kernel(const Steps& steps, size_t step, const Variant& variant) const {
  const std::lock_guard guard(mutex_);
  for (const Ready& ready : ready_) {
    if (ready.steps == &steps && ready.step == step && ready.variant == variant) {
      return *ready.kernel;
    }
  }
  Kernel made = target_.cold ? make_cold(steps, step, variant) : emit(steps, step, variant);
  ready_.push_back({&steps, step, variant, std::make_unique<Kernel>(std::move(made))});
  return *ready_.back().kernel;
}

}  // namespace hologram::gpu
