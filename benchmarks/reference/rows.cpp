// Programs over rows fused by hand: a row stays in the cache until it is done with.
//
// As in loops.cpp, the math functions are the project's, and what torch stores in bf16 between two
// operators is rounded to it. Sums are of vectors of floats and need not be the device's bit for
// bit: benchmarks/rows.py compares values with a tolerance. One thread.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "lanes.h"

namespace {

struct Shape {
  long rows, columns, inner;  // of images: how many, their channels, elements of a channel
};

#define HOLOGRAM_LAMBDA __attribute__((always_inline))

// step(i, n) for all vectors of a row, n elements each; n is a constant but for the last.
template <class Step>
HOLOGRAM_INLINE void each(long count, Step step) {
  long i = 0;
  for (; i + kLanes <= count; i += kLanes) step(i, std::integral_constant<long, kLanes>());
  if (i < count) step(i, count - i);
}

template <class T>
HOLOGRAM_INLINE V load(const typename T::Element* p, std::integral_constant<long, kLanes>,
                       float = 0) {
  return T::load(p);
}

template <class T>
HOLOGRAM_INLINE V load(const typename T::Element* p, long count, float rest = 0) {
  alignas(64) float values[kLanes];
  std::fill_n(values, kLanes, rest);
  alignas(64) typename T::Element words[kLanes] = {};
  std::memcpy(words, p, static_cast<size_t>(count) * sizeof *p);
  alignas(64) float read[kLanes];
  store_lanes(read, T::load(words));
  std::copy_n(read, count, values);
  return load_lanes<float, kWidth>(values);
}

template <class T>
HOLOGRAM_INLINE void store(typename T::Element* p, V x, std::integral_constant<long, kLanes>) {
  T::store(p, T::round(x));
}

template <class T>
HOLOGRAM_INLINE void store(typename T::Element* p, V x, long count) {
  alignas(64) typename T::Element words[kLanes];
  T::store(words, T::round(x));
  std::memcpy(p, words, static_cast<size_t>(count) * sizeof *p);
}

HOLOGRAM_INLINE V larger(V a, V b) {
  return select(a > b, a, b);
}

template <class Combine>
HOLOGRAM_INLINE float across(V x, Combine combine) {
  alignas(64) float lanes[kLanes];
  store_lanes(lanes, x);
  for (long width = kLanes / 2; width > 0; width /= 2) {
    for (long i = 0; i < width; ++i) lanes[i] = combine(lanes[i], lanes[i + width]);
  }
  return lanes[0];
}

HOLOGRAM_INLINE float sum_across(V x) {
  return across(x, [](float a, float b) { return a + b; });
}

// Four chains of additions, or of comparisons: one would wait for itself.
template <class Value, class Combine>
HOLOGRAM_INLINE V fold(long count, float start, Value value, Combine combine) {
  V sums[4] = {V(start), V(start), V(start), V(start)};
  long i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    for (int k = 0; k < 4; ++k) {
      sums[k] = combine(sums[k], value(i + k * kLanes, std::integral_constant<long, kLanes>()));
    }
  }
  each(count - i,
       [&](long j, auto n) HOLOGRAM_LAMBDA { sums[0] = combine(sums[0], value(i + j, n)); });
  return combine(combine(sums[0], sums[1]), combine(sums[2], sums[3]));
}

template <class Value>
HOLOGRAM_INLINE float sum(long count, Value value) {
  return sum_across(fold(count, 0, value, [](V a, V b) HOLOGRAM_LAMBDA { return a + b; }));
}

template <class T>
HOLOGRAM_INLINE float maximum(const typename T::Element* x, long count) {
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  const auto value = [&](long i, auto n) HOLOGRAM_LAMBDA { return load<T>(x + i, n, kLeast); };
  const V most = fold(count, kLeast, value, [](V a, V b) HOLOGRAM_LAMBDA { return larger(a, b); });
  return across(most, [](float a, float b) { return a > b ? a : b; });
}

// Stores what `value` gives and returns its sum, in which lanes beyond the row must not count.
template <class Value>
HOLOGRAM_INLINE float sum_stored(float* to, long count, Value value) {
  return sum(count, [&](long i, auto n) HOLOGRAM_LAMBDA {
    const V v = value(i, n);
    store<F32>(to + i, v, n);
    return v;
  });
}

template <class E>
struct Operands {
  void* const* p;
  float* scratch;  // of a row, and two more
  Shape shape;

  E* at(int i, long offset = 0) const { return static_cast<E*>(p[i]) + offset; }
  template <class Other>
  Other* as(int i, long offset = 0) const {
    return static_cast<Other*>(p[i]) + offset;
  }
};

// exp of this is nothing beside the 1 of the largest, and needs no care of math_exp.
constexpr float kNegligible = -80;

// exp(x - most) of a row; returns the sum.
template <class T>
HOLOGRAM_INLINE float exponentials(const typename T::Element* x, float most, float* to,
                                   long count) {
  return sum_stored(to, count, [&](long i, auto n) HOLOGRAM_LAMBDA {
    return math_exp(load<T>(x + i, n, most + kNegligible) - V(most));
  });
}

// What is not stored is not needed twice.
template <class T>
HOLOGRAM_INLINE float sum_of_exponentials(const typename T::Element* x, float most, long count) {
  return sum(count, [&](long i, auto n) HOLOGRAM_LAMBDA {
    return math_exp(load<T>(x + i, n, most + kNegligible) - V(most));
  });
}

// x, result
template <class T, class E>
void softmax(const Operands<E>& o) {
  const long columns = o.shape.columns;
  for (long row = 0; row < o.shape.rows; ++row) {
    const E* x = o.at(0, row * columns);
    E* result = o.at(1, row * columns);
    float* e = o.scratch;
    if constexpr (std::is_same_v<E, float>) e = result;
    const float scale = 1 / exponentials<T>(x, maximum<T>(x, columns), e, columns);
    each(columns, [&](long i, auto n)
                      HOLOGRAM_LAMBDA { store<T>(result + i, load<F32>(e + i, n) * V(scale), n); });
  }
}

// x, result
template <class T, class E>
void log_softmax(const Operands<E>& o) {
  const long columns = o.shape.columns;
  for (long row = 0; row < o.shape.rows; ++row) {
    const E* x = o.at(0, row * columns);
    E* result = o.at(1, row * columns);
    const float most = maximum<T>(x, columns);
    const float logarithm = std::log(sum_of_exponentials<T>(x, most, columns));
    each(columns, [&](long i, auto n) HOLOGRAM_LAMBDA {
      store<T>(result + i, load<T>(x + i, n) - V(most) - V(logarithm), n);
    });
  }
}

struct Moments {
  float mean, scale;
};

template <class T>
HOLOGRAM_INLINE Moments moments(const typename T::Element* x, long count) {
  const float mean =
      sum(count, [&](long i, auto n) HOLOGRAM_LAMBDA { return load<T>(x + i, n); }) / count;
  const float squares = sum(count, [&](long i, auto n) HOLOGRAM_LAMBDA {
    const V distance = load<T>(x + i, n, mean) - V(mean);
    return distance * distance;
  });
  return {mean, 1 / std::sqrt(squares / count + 1e-5f)};
}

template <class From, class T>
HOLOGRAM_INLINE void normalise(const typename From::Element* x, Moments m,
                               const typename T::Element* weight, const typename T::Element* bias,
                               typename T::Element* result, long count) {
  each(count, [&](long i, auto n) HOLOGRAM_LAMBDA {
    const V normal = (load<From>(x + i, n) - V(m.mean)) * V(m.scale);
    store<T>(result + i, normal * load<T>(weight + i, n) + load<T>(bias + i, n), n);
  });
}

// x, weight, bias, result
template <class T, class E>
void layer_norm(const Operands<E>& o) {
  const long columns = o.shape.columns;
  for (long row = 0; row < o.shape.rows; ++row) {
    const E* x = o.at(0, row * columns);
    normalise<T, T>(x, moments<T>(x, columns), o.at(1), o.at(2), o.at(3, row * columns), columns);
  }
}

// x, weight, result
template <class T, class E>
void rms_norm(const Operands<E>& o) {
  constexpr float kEpsilon = std::is_same_v<E, float> ? 0x1p-23f : 0x1p-7f;
  const long columns = o.shape.columns;
  for (long row = 0; row < o.shape.rows; ++row) {
    const E* x = o.at(0, row * columns);
    E* result = o.at(2, row * columns);
    const float squares = sum(columns, [&](long i, auto n) HOLOGRAM_LAMBDA {
      const V v = load<T>(x + i, n);
      return v * v;
    });
    const float scale = 1 / std::sqrt(squares / columns + kEpsilon);
    each(columns, [&](long i, auto n) HOLOGRAM_LAMBDA {
      store<T>(result + i, load<T>(x + i, n) * V(scale) * load<T>(o.at(1) + i, n), n);
    });
  }
}

// x, weight, bias, result: layer_norm(gelu(x + bias) + x)
template <class T, class E>
void block(const Operands<E>& o) {
  const long columns = o.shape.columns;
  for (long row = 0; row < o.shape.rows; ++row) {
    const E* x = o.at(0, row * columns);
    const float total = sum_stored(o.scratch, columns, [&](long i, auto n) HOLOGRAM_LAMBDA {
      const V v = load<T>(x + i, n);
      const V u = T::round(v + load<T>(o.at(2) + i, n));
      const V gelu = V(0.5f) * u * (V(1) + math_erf(u * V(0.70710678118654752f)));
      return T::round(T::round(gelu) + v);
    });
    const float mean = total / columns;
    const float squares = sum(columns, [&](long i, auto n) HOLOGRAM_LAMBDA {
      const V distance = load<F32>(o.scratch + i, n, mean) - V(mean);
      return distance * distance;
    });
    normalise<F32, T>(o.scratch, {mean, 1 / std::sqrt(squares / columns + 1e-5f)}, o.at(1), o.at(2),
                      o.at(3, row * columns), columns);
  }
}

// x, target, result: the mean
template <class T, class E>
void cross_entropy(const Operands<E>& o) {
  const long columns = o.shape.columns;
  double total = 0;
  for (long row = 0; row < o.shape.rows; ++row) {
    const E* x = o.at(0, row * columns);
    const float most = maximum<T>(x, columns);
    const float picked = load<T>(x + o.template as<long>(1)[row], 1L).v[0];
    total += std::log(sum_of_exponentials<T>(x, most, columns)) - (picked - most);
  }
  store<T>(o.at(2), V(static_cast<float>(total / o.shape.rows)), 1L);
}

// x, target, gradient: the loss is computed too.
template <class T, class E>
void cross_entropy_step(const Operands<E>& o) {
  const long columns = o.shape.columns;
  const float share = 1.0f / o.shape.rows;
  double total = 0;
  for (long row = 0; row < o.shape.rows; ++row) {
    const E* x = o.at(0, row * columns);
    E* gradient = o.at(2, row * columns);
    const long target = o.template as<long>(1)[row];
    const float most = maximum<T>(x, columns);
    float* e = o.scratch;
    if constexpr (std::is_same_v<E, float>) e = gradient;
    const float all = exponentials<T>(x, most, e, columns);
    total += std::log(all) - (load<T>(x + target, 1L).v[0] - most);
    const float at_target = e[target] * (share / all) - share;
    each(columns, [&](long i, auto n) HOLOGRAM_LAMBDA {
      store<T>(gradient + i, load<F32>(e + i, n) * V(share / all), n);
    });
    store<T>(gradient + target, V(at_target), 1L);
  }
  *o.scratch = static_cast<float>(total);  // else the compiler leaves it out
}

// gradient, softmax, result
template <class T, class E>
void softmax_backward(const Operands<E>& o) {
  const long columns = o.shape.columns;
  for (long row = 0; row < o.shape.rows; ++row) {
    const E *g = o.at(0, row * columns), *y = o.at(1, row * columns);
    E* result = o.at(2, row * columns);
    const float dot = sum(columns, [&](long i, auto n) HOLOGRAM_LAMBDA {
      return load<T>(g + i, n) * load<T>(y + i, n);
    });
    each(columns, [&](long i, auto n) HOLOGRAM_LAMBDA {
      store<T>(result + i, (load<T>(g + i, n) - V(dot)) * load<T>(y + i, n), n);
    });
  }
}

// gradient, log_softmax, result
template <class T, class E>
void log_softmax_backward(const Operands<E>& o) {
  const long columns = o.shape.columns;
  for (long row = 0; row < o.shape.rows; ++row) {
    const E *g = o.at(0, row * columns), *y = o.at(1, row * columns);
    E* result = o.at(2, row * columns);
    const float total =
        sum(columns, [&](long i, auto n) HOLOGRAM_LAMBDA { return load<T>(g + i, n); });
    each(columns, [&](long i, auto n) HOLOGRAM_LAMBDA {
      store<T>(result + i, load<T>(g + i, n) - math_exp(load<T>(y + i, n)) * V(total), n);
    });
  }
}

// Gradients of weight and bias gather in two rows of scratch.
template <class T, class E>
void store_gathered(const Operands<E>& o, const float* gathered, int operand) {
  each(o.shape.columns, [&](long i, auto n) HOLOGRAM_LAMBDA {
    store<T>(o.at(operand) + i, load<F32>(gathered + i, n), n);
  });
}

// gradient, x, weight, mean and 1 / deviation of rows; gradients of x, weight, bias
template <class T, class E>
void layer_norm_backward(const Operands<E>& o) {
  const long columns = o.shape.columns;
  float *of_weight = o.scratch, *of_bias = o.scratch + columns;
  std::fill_n(of_weight, 2 * columns, 0.0f);
  for (long row = 0; row < o.shape.rows; ++row) {
    const E *g = o.at(0, row * columns), *x = o.at(1, row * columns), *weight = o.at(2);
    E* result = o.at(5, row * columns);
    const V mean(o.template as<float>(3)[row]), scale(o.template as<float>(4)[row]);
    V of_mean(0.0f), of_scale(0.0f);
    each(columns, [&](long i, auto n) HOLOGRAM_LAMBDA {
      const V gradient = load<T>(g + i, n);
      const V normal = (load<T>(x + i, n) - mean) * scale;
      const V inner = gradient * load<T>(weight + i, n);
      of_mean = of_mean + inner;
      of_scale = of_scale + inner * normal;
      store<F32>(of_weight + i, load<F32>(of_weight + i, n) + gradient * normal, n);
      store<F32>(of_bias + i, load<F32>(of_bias + i, n) + gradient, n);
    });
    const V a(sum_across(of_mean) / columns), b(sum_across(of_scale) / columns);
    each(columns, [&](long i, auto n) HOLOGRAM_LAMBDA {
      const V normal = (load<T>(x + i, n) - mean) * scale;
      const V inner = load<T>(g + i, n) * load<T>(weight + i, n);
      store<T>(result + i, scale * (inner - a - normal * b), n);
    });
  }
  store_gathered<T>(o, of_weight, 6);
  store_gathered<T>(o, of_bias, 7);
}

// gradient, x, weight, 1 / root mean square of rows; gradients of x, weight
template <class T, class E>
void rms_norm_backward(const Operands<E>& o) {
  const long columns = o.shape.columns;
  float* of_weight = o.scratch;
  std::fill_n(of_weight, columns, 0.0f);
  for (long row = 0; row < o.shape.rows; ++row) {
    const E *g = o.at(0, row * columns), *x = o.at(1, row * columns), *weight = o.at(2);
    E* result = o.at(4, row * columns);
    const V scale(o.template as<float>(3)[row]);
    V of_scale(0.0f);
    each(columns, [&](long i, auto n) HOLOGRAM_LAMBDA {
      const V gradient = load<T>(g + i, n), normal = load<T>(x + i, n) * scale;
      of_scale = of_scale + gradient * load<T>(weight + i, n) * normal;
      store<F32>(of_weight + i, load<F32>(of_weight + i, n) + gradient * normal, n);
    });
    const V b(sum_across(of_scale) / columns);
    each(columns, [&](long i, auto n) HOLOGRAM_LAMBDA {
      const V inner = load<T>(g + i, n) * load<T>(weight + i, n);
      store<T>(result + i, scale * (inner - load<T>(x + i, n) * scale * b), n);
    });
  }
  store_gathered<T>(o, of_weight, 5);
}

HOLOGRAM_INLINE void update(float& running, float value) {
  running = 0.9f * running + 0.1f * value;
}

// A channel at a time: x, weight, bias, running mean and variance, result
template <class T, class E>
void batch_norm(const Operands<E>& o) {
  const auto [images, channels, inner] = o.shape;
  const float count = static_cast<float>(images * inner);
  for (long c = 0; c < channels; ++c) {
    float mean = 0, squares = 0;
    for (long k = 0; k < images; ++k) {
      const E* x = o.at(0, (k * channels + c) * inner);
      mean += sum(inner, [&](long i, auto n) HOLOGRAM_LAMBDA { return load<T>(x + i, n); });
    }
    mean /= count;
    for (long k = 0; k < images; ++k) {
      const E* x = o.at(0, (k * channels + c) * inner);
      squares += sum(inner, [&](long i, auto n) HOLOGRAM_LAMBDA {
        const V distance = load<T>(x + i, n, mean) - V(mean);
        return distance * distance;
      });
    }
    update(o.template as<float>(3)[c], mean);
    update(o.template as<float>(4)[c], squares / (count - 1));
    const float scale = o.template as<float>(1)[c] / std::sqrt(squares / count + 1e-5f);
    const float bias = o.template as<float>(2)[c];
    for (long k = 0; k < images; ++k) {
      const long offset = (k * channels + c) * inner;
      each(inner, [&](long i, auto n) HOLOGRAM_LAMBDA {
        const V v = load<T>(o.at(0, offset + i), n);
        store<T>(o.at(5, offset + i), (v - V(mean)) * V(scale) + V(bias), n);
      });
    }
  }
}

// out = x * scale + bias by channel, the channels last
template <class T, class E>
void affine_last(const Operands<E>& o, const float* scale, const float* bias) {
  const auto [images, channels, inner] = o.shape;
  for (long row = 0; row < images * inner; ++row) {
    const long offset = row * channels;
    each(channels, [&](long i, auto n) HOLOGRAM_LAMBDA {
      const V v = load<T>(o.at(0, offset + i), n);
      store<T>(o.at(5, offset + i), v * load<F32>(scale + i, n) + load<F32>(bias + i, n), n);
    });
  }
}

// The channels are last: sums of distances from the first row, and of their squares, in one
// reading.
template <class T, class E>
void batch_norm_last(const Operands<E>& o) {
  const auto [images, channels, inner] = o.shape;
  const long rows = images * inner;
  float *sums = o.scratch, *squares = o.scratch + channels;
  each(channels, [&](long i, auto n) HOLOGRAM_LAMBDA {
    const V first = load<T>(o.at(0, i), n);
    V total(0.0f), total_of_squares(0.0f);
    for (long row = 0; row < rows; ++row) {
      const V distance = load<T>(o.at(0, row * channels + i), n) - first;
      total = total + distance;
      total_of_squares = total_of_squares + distance * distance;
    }
    store<F32>(sums + i, total, n);
    store<F32>(squares + i, total_of_squares, n);
  });
  for (long c = 0; c < channels; ++c) {
    const float distance = sums[c] / rows;
    const float mean = load<T>(o.at(0, c), 1L).v[0] + distance;
    const float of_squares = squares[c] - distance * sums[c];
    update(o.template as<float>(3)[c], mean);
    update(o.template as<float>(4)[c], of_squares / (rows - 1));
    sums[c] = o.template as<float>(1)[c] / std::sqrt(of_squares / rows + 1e-5f);
    squares[c] = o.template as<float>(2)[c] - mean * sums[c];
  }
  affine_last<T>(o, sums, squares);
}

template <class E>
void scales_of_running(const Operands<E>& o) {
  const long channels = o.shape.columns;
  for (long c = 0; c < channels; ++c) {
    const float scale = o.template as<float>(1)[c] / std::sqrt(o.template as<float>(4)[c] + 1e-5f);
    o.scratch[c] = scale;
    o.scratch[channels + c] = o.template as<float>(2)[c] - o.template as<float>(3)[c] * scale;
  }
}

template <class T, class E>
void batch_norm_in_eval(const Operands<E>& o) {
  const auto [images, channels, inner] = o.shape;
  scales_of_running(o);
  for (long k = 0; k < images * channels; ++k) {
    const V scale(o.scratch[k % channels]), bias(o.scratch[channels + k % channels]);
    each(inner, [&](long i, auto n) HOLOGRAM_LAMBDA {
      const V v = load<T>(o.at(0, k * inner + i), n);
      store<T>(o.at(5, k * inner + i), v * scale + bias, n);
    });
  }
}

template <class T, class E>
void batch_norm_in_eval_last(const Operands<E>& o) {
  scales_of_running(o);
  affine_last<T>(o, o.scratch, o.scratch + o.shape.columns);
}

// Eight groups: x, weight, bias, result
template <class T, class E>
void group_norm(const Operands<E>& o) {
  const auto [images, channels, inner] = o.shape;
  const long together = channels / 8;
  for (long group = 0; group < images * 8; ++group) {
    const long offset = group * together * inner;
    const Moments m = moments<T>(o.at(0, offset), together * inner);
    for (long k = 0; k < together; ++k) {
      const long c = group % 8 * together + k;
      const V weight(o.template as<float>(1)[c]), bias(o.template as<float>(2)[c]);
      each(inner, [&](long i, auto n) HOLOGRAM_LAMBDA {
        const long at = offset + k * inner + i;
        const V normal = (load<T>(o.at(0, at), n) - V(m.mean)) * V(m.scale);
        store<T>(o.at(3, at), normal * weight + bias, n);
      });
    }
  }
}

}  // namespace

// Runs a program `repetitions` times on one thread. `sizes`: rows and columns and 1, or images,
// channels and elements of a channel. Returns false if there is no program of that name.
extern "C" [[gnu::visibility("default")]] bool hologram_reference_rows(
    const char* program, bool half, void* const* operands, const long* sizes, long repetitions) {
  const Shape shape{sizes[0], sizes[1], sizes[2]};
  std::vector<float> scratch(static_cast<size_t>(2 * shape.columns + kLanes));
#define HOLOGRAM_PROGRAM(name)                                           \
  if (std::strcmp(program, #name) == 0) {                                \
    for (long k = 0; k < repetitions; ++k) {                             \
      if (half) {                                                        \
        name<BF16>(Operands<uint16_t>{operands, scratch.data(), shape}); \
      } else {                                                           \
        name<F32>(Operands<float>{operands, scratch.data(), shape});     \
      }                                                                  \
    }                                                                    \
    return true;                                                         \
  }
  HOLOGRAM_PROGRAM(softmax)
  HOLOGRAM_PROGRAM(log_softmax)
  HOLOGRAM_PROGRAM(layer_norm)
  HOLOGRAM_PROGRAM(rms_norm)
  HOLOGRAM_PROGRAM(block)
  HOLOGRAM_PROGRAM(cross_entropy)
  HOLOGRAM_PROGRAM(cross_entropy_step)
  HOLOGRAM_PROGRAM(softmax_backward)
  HOLOGRAM_PROGRAM(log_softmax_backward)
  HOLOGRAM_PROGRAM(layer_norm_backward)
  HOLOGRAM_PROGRAM(rms_norm_backward)
  HOLOGRAM_PROGRAM(batch_norm)
  HOLOGRAM_PROGRAM(batch_norm_last)
  HOLOGRAM_PROGRAM(batch_norm_in_eval)
  HOLOGRAM_PROGRAM(batch_norm_in_eval_last)
  HOLOGRAM_PROGRAM(group_norm)
#undef HOLOGRAM_PROGRAM
  return false;
}
