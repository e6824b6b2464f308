// Random choices: permutations, and categories by their probabilities. Each is composed of draws
// (aten/random.cpp) and of operators that put these in order.
//
// What a program cannot read, and arguments that torch refuses, are left to its kernels: so the
// words are torch's. What is wrong with probabilities is seen when they are there.
#include "aten/precompiled.h"

#include <ATen/native/TensorFactories.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "aten/delegate.h"
#include "aten/folding.h"
#include "aten/generator.h"
#include "aten/past_autograd.h"
#include "aten/random.h"
#include "aten/record_call.h"
#include "aten/report.h"
#include "aten/runtime.h"

namespace hologram::aten {
namespace {

using at::ScalarType;
using at::Tensor;
using Generator = std::optional<at::Generator>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A generator of the device brings tensors of others here.
bool is_ours(const Tensor& tensor) {
  return tensor.device().type() == kHologram;
}

// ---- permutations ----

bool is_numbered(ScalarType type) {
  return c10::isIntegralType(type, /*includeBool=*/false) ? !c10::isBarebonesUnsignedType(type)
                                                          : is_real(type);
}

// The numbers of keys in their order, equal ones in the order of their numbers. Keys that are
// uniform over all words, as these are, fall evenly into buckets by their upper bits: then a few
// are left to be put in order in each. torch's sort takes four times as long.
void order(const int64_t* keys, int64_t count, int64_t* numbers) {
  struct Entry {
    uint64_t key;
    int64_t number;
    bool operator<(const Entry& other) const {
      return std::tie(key, number) < std::tie(other.key, other.number);
    }
  };
  constexpr int64_t kInBucket = 4;
  const int shift = 63 - std::bit_width(static_cast<uint64_t>(count / kInBucket));
  const auto bucket_of = [&](uint64_t key) { return (key >> 1) >> shift; };
  std::vector<int64_t> ends((size_t{1} << (63 - shift)) + 1);
  std::vector<Entry> entries(static_cast<size_t>(count));
  const auto key_of = [&](int64_t i) {
    return static_cast<uint64_t>(keys[i]) ^ uint64_t { 1 } << 63;
  };
  for (int64_t i = 0; i < count; ++i) ++ends[bucket_of(key_of(i)) + 1];
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t key = key_of(i);
    entries[static_cast<size_t>(ends[bucket_of(key)]++)] = {key, i};
  }
  int64_t begin = 0;
  for (const int64_t end : std::span(ends).first(ends.size() - 1)) {
    std::sort(entries.begin() + begin, entries.begin() + end);
    for (; begin < end; ++begin) numbers[begin] = entries[static_cast<size_t>(begin)].number;
  }
}

// The order of random keys. Two of n keys of 64 bits are equal with a probability below n^2 / 2^65,
// of a million 3e-8; then the one before stays before, so of each pair the first number comes first
// with a probability that is 2^-65 too great.
Tensor& randperm_out(int64_t n, Generator generator, Tensor& result) {
  static Service here("aten::randperm", "generator_out");
  const ScalarType type = result.scalar_type();
  if (n < 0 || !is_numbered(type) || !is_ours(result)) {
    here.delegate(n, generator, result);
    return result;
  }
  const auto device = result.device().index();
  random_source(generator, device);
  at::native::check_supported_max_int_with_precision(n, at::empty({0}, at::dtype(type)));
  result.resize_({n});
  if (n != 0) {
    Tensor keys = at::empty({n}, result.options().dtype(at::kLong));
    keys.random_(std::numeric_limits<int64_t>::min(), std::nullopt, std::move(generator));
    if (!records_calls(device)) {  // a vendor's sort gives the same order
      result.copy_(std::get<1>(at::sort(keys, /*stable=*/true, /*dim=*/-1, /*descending=*/false)));
    } else {
      const Tensor numbers =
          type == at::kLong && result.is_contiguous() && is_recordable(result, device)
              ? result
              : at::empty({n}, keys.options());
      record_kernel("aten::randperm", {&keys}, numbers, [n](at::ArrayRef<Tensor> on_cpu) {
        order(on_cpu[0].const_data_ptr<int64_t>(), n, on_cpu[1].mutable_data_ptr<int64_t>());
      });
      if (!numbers.is_same(result)) result.copy_(numbers);
    }
  }
  note_native(here.counter);
  return result;
}

// ---- categories ----

// As torch counts them, for float32 indices.
constexpr int64_t kMostCategories = int64_t{1} << 24;

double greatest(ScalarType type) {
  switch (type) {
    case at::kDouble: return std::numeric_limits<double>::max();
    case at::kHalf: return 65504;
    case at::kBFloat16: return 0x1.fep127;
    default: return static_cast<double>(std::numeric_limits<float>::max());
  }
}

// False where a program cannot read the probabilities. torch has words of its own for those that
// categories are drawn from `in_order`, with replacement.
bool check_probabilities(const Tensor& probabilities, bool in_order) {
  constexpr const char* kName = "multinomial";
  const auto check_all = [&](const Tensor& holds, const char* message) {
    return check_later(holds.to(at::kFloat), 1, kInfinity, message, kName);
  };
  if (!in_order) {
    if (!check_later(probabilities, 0, greatest(probabilities.scalar_type()),
                     "probability tensor contains either `inf`, `nan` or element < 0", kName)) {
      return false;
    }
  } else if (!check_later(probabilities, 0, kInfinity,
                          "invalid multinomial distribution (encountering probability entry < 0)",
                          kName) ||
             !check_all(probabilities.ne(kInfinity),
                        "invalid multinomial distribution (encountering probability entry = "
                        "infinity or NaN)")) {
    return false;
  }
  // Of numbers that are not negative the sum is 0 where each is, however it is rounded.
  return check_all(probabilities.ne(0).any(-1),
                   "invalid multinomial distribution (sum of probabilities <= 0)");
}

// Exponential numbers of float32, as fine near 0 as the least of many has to be: of 48 bits. With
// the 24 of exponential_() one in 2^24 is 0, and its category would be chosen however small its
// probability is; and of millions of categories several would be the least.
Tensor fine_exponential(at::IntArrayRef sizes, at::TensorOptions options,
                        const Generator& generator) {
  options = options.dtype(at::kFloat);
  const Tensor upper = at::empty(sizes, options).uniform_(0, 1, generator);
  const Tensor lower = at::empty(sizes, options).uniform_(0, 1, generator);
  // Below 1, and the result above 0.
  const Tensor number = upper.add(lower, 0x1p-24).clamp_max(1 - 0x1p-24);
  return number.neg().log1p().neg().clamp_min(0x1p-49);
}

// None, with nothing drawn, where torch's kernel serves or refuses the arguments.
std::optional<Tensor> sampled(const Tensor& probabilities, int64_t count, bool replacement,
                              const Generator& generator) {
  const int64_t rank = probabilities.dim();
  if (rank < 1 || rank > 2 || !is_real(probabilities.scalar_type()) || probabilities.numel() == 0 ||
      !is_ours(probabilities)) {
    return std::nullopt;
  }
  const int64_t categories = probabilities.size(-1);
  const bool in_order = replacement && count != 1;
  if (count <= 0 || (!replacement && count > categories) || categories > kMostCategories) {
    return std::nullopt;
  }
  random_source(generator, probabilities.device().index());
  if (!check_probabilities(probabilities, in_order)) return std::nullopt;

  if (!in_order) {
    // Of exponential numbers whose rates are the probabilities, each is the least with its
    // probability, and the order of all is that of draws without replacement. A probability of 0
    // comes behind all others. Halves would make many equal.
    const bool is_double = probabilities.scalar_type() == at::kDouble;
    const Tensor rates = is_double ? probabilities : probabilities.to(at::kFloat);
    const Tensor speeds =
        rates.div(fine_exponential(probabilities.sizes(), probabilities.options(), generator));
    if (count == 1) return speeds.argmax(-1, /*keepdim=*/true);
    return std::get<1>(at::topk(speeds, count));
  }
  // The first category whose sum is above a number in [0, total): its own probability is not 0. The
  // product may be rounded up to the total, once in 2^53. Sums of float32 would lose small
  // probabilities behind great ones.
  const auto options = probabilities.options().dtype(at::kDouble);
  const Tensor sums = probabilities.cumsum(-1, at::kDouble);
  const Tensor total = sums.narrow(-1, categories - 1, 1);
  auto sizes = probabilities.sizes().vec();
  sizes.back() = count;
  const Tensor numbers = at::empty(sizes, options).uniform_(0, 1, generator).mul(total);
  const Tensor below = at::where(numbers.lt(total), numbers, 0);
  const Tensor found = at::searchsorted(sums, below, /*out_int32=*/false, /*right=*/true);
  // Of sums that are 0 or NaN, which raise later, no index is to be out of range either.
  return at::minimum(found, at::scalar_tensor(categories - 1, found.options()));
}

Tensor multinomial(const Tensor& self, int64_t count, bool replacement, Generator generator) {
  static Service here("aten::multinomial", "");
  auto result = sampled(self, count, replacement, generator);
  if (!result) return here.delegate(self, count, replacement, generator);
  note_native(here.counter);
  return *std::move(result);
}
Tensor& multinomial_out(const Tensor& self, int64_t count, bool replacement, Generator generator,
                        Tensor& out) {
  static Service here("aten::multinomial", "out");
  std::optional<Tensor> result;
  if (out.device() == self.device() && out.scalar_type() == at::kLong) {
    result = sampled(self, count, replacement, generator);
  }
  if (!result) {
    here.delegate(self, count, replacement, generator, out);
    return out;
  }
  out.resize_(result->sizes()).copy_(*result);
  note_native(here.counter);
  return out;
}

}  // namespace

void register_random_choices() {
  implement("randperm.generator_out", &randperm_out);
  implement("multinomial", &multinomial);
  implement("multinomial.out", &multinomial_out);
}

}  // namespace hologram::aten
