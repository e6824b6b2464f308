// An input plane is copied into `phases`, one for each remainder of rows and columns by the stride,
// with zeros around: of a phase, what a tap of the kernel reads for neighbouring outputs lies side
// by side. Rows of outputs are computed with the columns that a phase has beyond them, so a whole
// plane is one loop over registers, which small planes need most; what is in these columns is left
// out at the end.
#include "cpu/depthwise.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <new>
#include <utility>
#include <vector>

#include "atlas/float_mode.h"
#include "cpu/copy_rows.h"
#include "cpu/kernel_table.h"
#include "cpu/system.h"

namespace hologram::cpu {
namespace {

const DepthwiseKernels& loops() {
  static const DepthwiseKernels& kernels = kernels_for(best_isa()).depthwise;
  return kernels;
}

int64_t divide_up(int64_t a, int64_t b) {
  return a >= 0 ? (a + b - 1) / b : -(-a / b);
}

// The part of a kernel of which some product is with an element of the image. The shape is that of
// the convolution with this part alone.
struct Part {
  Depthwise shape;
  int64_t pitch, taps;  // of whole kernels
  int64_t first = 0;    // tap

  explicit Part(const Depthwise& whole)
      : shape(whole), pitch(whole.kernel_width), taps(whole.taps()) {
    first =
        crop(shape.kernel_height, shape.pad_height, whole.height, whole.out_height,
             whole.stride_height) *
            pitch +
        crop(shape.kernel_width, shape.pad_width, whole.width, whole.out_width, whole.stride_width);
  }
  int64_t tap(int64_t y, int64_t x) const { return first + y * pitch + x; }

 private:
  // Of one dimension. Returns how many are left out before. One is always left.
  static int64_t crop(int64_t& kernel, int64_t& pad, int64_t size, int64_t out, int64_t stride) {
    const int64_t begin = std::clamp<int64_t>(pad - (out - 1) * stride, 0, kernel - 1);
    const int64_t end = std::clamp<int64_t>(size + pad, begin + 1, kernel);
    kernel = end - begin;
    pad -= begin;
    return begin;
  }
};

// Taps, and where in a kernel their weights are.
struct Taps {
  std::vector<DepthwiseTap> all;
  std::vector<int64_t> places;
  void add(int64_t offset, int64_t place) {
    all.push_back({offset, 0});
    places.push_back(place);
  }
  int64_t count() const { return static_cast<int64_t>(all.size()); }
  void weigh(const float* kernel) {
    for (size_t t = 0; t < all.size(); ++t) all[t].weight = kernel[places[t]];
  }
};

// Planes with zeros where nothing is put, and room to be read behind the last one: a tap's row and
// a few registers.
class Grid {
 public:
  Grid(int64_t rows, int64_t pitch, int64_t count)
      : pitch_(pitch),
        size_(rows * pitch),
        memory_(static_cast<size_t>(count * size_ + pitch_ + kDepthwiseSlack)) {}
  float* plane(int64_t number = 0) { return memory_.data() + number * size_; }
  float* row(int64_t y) { return memory_.data() + y * pitch_; }
  int64_t pitch() const { return pitch_; }
  int64_t size() const { return size_; }
  // Whether the taps may read for so many outputs.
  bool holds(const Taps& taps, int64_t count) const {
    const auto offset = [](const DepthwiseTap& tap) { return tap.offset; };
    const int64_t last = std::ranges::max_element(taps.all, {}, offset)->offset;
    return last + count + kDepthwiseSlack <= static_cast<int64_t>(memory_.size());
  }

 private:
  int64_t pitch_, size_;
  std::vector<float> memory_;
};

// Of a phase, rows or columns: which of the image they are. `first` to `last` are in it.
struct Line {
  int64_t first, last, stride, offset;  // number i is i * stride + offset
  Line(int64_t phase, int64_t its_stride, int64_t pad, int64_t size, int64_t count)
      : first(std::max<int64_t>(0, divide_up(pad - phase, its_stride))),
        last(std::min(count, divide_up(size + pad - phase, its_stride))),
        stride(its_stride),
        offset(phase - pad) {}
  int64_t operator[](int64_t i) const { return i * stride + offset; }
};

// The phases of the planes of images.
class Phases {
 public:
  explicit Phases(const Part& part)
      : part_(part),
        shape_(part.shape),
        grid_(shape_.out_height + (shape_.kernel_height - 1) / shape_.stride_height,
              shape_.out_width + (shape_.kernel_width - 1) / shape_.stride_width,
              shape_.stride_height * shape_.stride_width) {
    for (int64_t a = 0; a < shape_.stride_height; ++a) {
      rows_.emplace_back(a, shape_.stride_height, shape_.pad_height, shape_.height,
                         grid_.size() / pitch());
    }
    for (int64_t b = 0; b < shape_.stride_width; ++b) {
      columns_.emplace_back(b, shape_.stride_width, shape_.pad_width, shape_.width, pitch());
    }
  }

  int64_t pitch() const { return grid_.pitch(); }
  int64_t outputs() const { return shape_.out_height * pitch(); }
  const float* data() { return grid_.plane(); }

  // What reads for the first output.
  Taps taps() const {
    Taps taps;
    const int64_t sh = shape_.stride_height, sw = shape_.stride_width;
    for (int64_t y = 0; y < shape_.kernel_height; ++y) {
      for (int64_t x = 0; x < shape_.kernel_width; ++x) {
        const int64_t phase = y % sh * sw + x % sw;
        taps.add(phase * grid_.size() + y / sh * pitch() + x / sw, part_.tap(y, x));
      }
    }
    assert(grid_.holds(taps, outputs()));
    return taps;
  }

  // The zeros stay where they are.
  void fill(const float* plane) {
    int64_t phase = 0;
    for (const Line& rows : rows_) {
      for (const Line& columns : columns_) {
        float* const to = grid_.plane(phase++);
        const int64_t count = columns.last - columns.first;
        if (count <= 0) continue;
        if (columns.stride == 1) {
          copy_rows(to + rows.first * pitch() + columns.first, pitch(),
                    plane + rows[rows.first] * shape_.width + columns[columns.first],
                    rows.stride * shape_.width, rows.last - rows.first, count);
          continue;
        }
        for (int64_t row = rows.first; row < rows.last; ++row) {
          const float* from = plane + rows[row] * shape_.width + columns[columns.first];
          float* const first = to + row * pitch() + columns.first;
          for (int64_t i = 0; i < count; ++i) first[i] = from[i * columns.stride];
        }
      }
    }
  }

 private:
  const Part& part_;
  const Depthwise& shape_;
  Grid grid_;
  std::vector<Line> rows_, columns_;
};

// Those numbered `begin` to `end`.
void outputs_of(const Part& part, const float* images, const float* kernels, float* outputs,
                int64_t begin, int64_t end) {
  const Depthwise& shape = part.shape;
  Phases phases(part);
  const int64_t pitch = phases.pitch(), width = shape.out_width;
  Taps taps = phases.taps();
  Grid sums(shape.out_height, pitch, 1);
  for (int64_t n = begin; n < end; ++n) {
    taps.weigh(kernels + n % shape.channels * part.taps);
    phases.fill(images + n * shape.plane());
    loops().sums(taps.all.data(), taps.count(), phases.data(), sums.plane(), phases.outputs());
    copy_rows(outputs + n * shape.out_plane(), width, sums.plane(), pitch, shape.out_height, width);
  }
}

// Each phase of the image's gradient is a convolution with the taps that have read it, the other
// way round, over the gradient of the outputs with zeros around.
void image_gradients_of(const Part& part, const float* grads, const float* kernels, float* images,
                        int64_t begin, int64_t end) {
  const Depthwise& shape = part.shape;
  const int64_t sh = shape.stride_height, sw = shape.stride_width;
  const int64_t above = (shape.kernel_height - 1) / sh, before = (shape.kernel_width - 1) / sw;
  const int64_t rows = shape.out_height + above, columns = shape.out_width + before;
  Grid grid(rows + above, columns + before, 1);
  const int64_t pitch = grid.pitch();
  Grid sums(rows, pitch, 1);
  struct Phase {
    Taps taps;
    Line rows, columns;
  };
  std::vector<Phase> phases;
  for (int64_t a = 0; a < sh; ++a) {
    for (int64_t b = 0; b < sw; ++b) {
      Phase phase{{},
                  {a, sh, shape.pad_height, shape.height, rows},
                  {b, sw, shape.pad_width, shape.width, columns}};
      for (int64_t y = a; y < shape.kernel_height; y += sh) {
        for (int64_t x = b; x < shape.kernel_width; x += sw) {
          phase.taps.add((above - y / sh) * pitch + before - x / sw, part.tap(y, x));
        }
      }
      if (phase.taps.count() == 0) continue;
      assert(grid.holds(phase.taps, rows * pitch));
      phases.push_back(std::move(phase));
    }
  }
  for (int64_t n = begin; n < end; ++n) {
    copy_rows(grid.row(above) + before, pitch, grads + n * shape.out_plane(), shape.out_width,
              shape.out_height, shape.out_width);
    float* const image = images + n * shape.plane();
    std::fill_n(image, shape.plane(), 0.0F);  // what no tap has read
    for (Phase& phase : phases) {
      phase.taps.weigh(kernels + n % shape.channels * part.taps);
      loops().sums(phase.taps.all.data(), phase.taps.count(), grid.plane(), sums.plane(),
                   rows * pitch);
      const Line& columns_of = phase.columns;
      for (int64_t row = phase.rows.first; row < phase.rows.last; ++row) {
        float* const to = image + phase.rows[row] * shape.width + columns_of.offset;
        const float* const from = sums.row(row);
        for (int64_t i = columns_of.first; i < columns_of.last; ++i) to[i * sw] = from[i];
      }
    }
  }
}

// In columns beyond the outputs the gradient is zero, and what is there of the image is left out:
// zero times infinity is no zero.
void kernel_gradients_of(const Part& part, const float* grads, const float* images, float* kernels,
                         int64_t begin, int64_t end) {
  const Depthwise& shape = part.shape;
  Phases phases(part);
  const int64_t pitch = phases.pitch();
  const Taps taps = phases.taps();
  Grid grid(shape.out_height, pitch, 1);
  std::vector<uint32_t> inside(static_cast<size_t>(grid.size() + kDepthwiseSlack));
  for (int64_t y = 0; y < shape.out_height; ++y) {
    std::fill_n(inside.data() + y * pitch, shape.out_width, ~0U);
  }
  std::vector<float> sums(taps.all.size());
  for (int64_t channel = begin; channel < end; ++channel) {
    std::fill(sums.begin(), sums.end(), 0.0F);
    for (int64_t image = 0; image < shape.images; ++image) {
      const int64_t n = image * shape.channels + channel;
      phases.fill(images + n * shape.plane());
      copy_rows(grid.plane(), pitch, grads + n * shape.out_plane(), shape.out_width,
                shape.out_height, shape.out_width);
      loops().products(taps.all.data(), taps.count(), phases.data(), grid.plane(), inside.data(),
                       phases.outputs(), sums.data());
    }
    float* const kernel = kernels + channel * part.taps;
    std::fill_n(kernel, part.taps, 0.0F);
    copy_rows(kernel + part.first, part.pitch, sums.data(), shape.kernel_width, shape.kernel_height,
              shape.kernel_width);
  }
}

using Compute = void (*)(const Part&, const float*, const float*, float*, int64_t, int64_t);

// `count` parts, each thread its share of neighbours.
void share(Compute compute, const Depthwise& whole, const float* from, const float* other,
           float* to, int64_t count, Parallel& parallel) {
  constexpr int64_t kSerialProducts = 8 * kSerialElements;  // what a thread has to have
  const Part part(whole);
  const Depthwise& shape = part.shape;
  const int64_t products = shape.images * shape.channels * shape.out_plane() * shape.taps();
  const int64_t threads =
      std::min<int64_t>({parallel.threads(), products / kSerialProducts, count});
  if (threads < 2) {
    compute(part, from, other, to, 0, count);
    return;
  }
  struct Work {
    Compute compute;
    const Part& part;
    const float *from, *other;
    float* to;
    int64_t count, threads;
    FloatMode mode = float_mode();
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};  // for want of memory
    void run() noexcept {
      const FloatModeGuard guard(mode);
      try {
        for (int64_t i = next++; i < threads; i = next++) {
          compute(part, from, other, to, count * i / threads, count * (i + 1) / threads);
        }
      } catch (const std::bad_alloc&) {
        failed = true;
      }
    }
  } work{compute, part, from, other, to, count, threads};
  parallel.run(
      static_cast<int>(threads), [](void* its, int) { static_cast<Work*>(its)->run(); }, &work);
  if (work.failed) throw std::bad_alloc();
}

}  // namespace

void depthwise(const Depthwise& shape, const float* images, const float* kernels, float* outputs,
               Parallel& parallel) {
  const int64_t planes = shape.images * shape.channels;
  share(&outputs_of, shape, images, kernels, outputs, planes, parallel);
}

void depthwise_input_gradient(const Depthwise& shape, const float* grads, const float* kernels,
                              float* images, Parallel& parallel) {
  const int64_t planes = shape.images * shape.channels;
  share(&image_gradients_of, shape, grads, kernels, images, planes, parallel);
}

void depthwise_weight_gradient(const Depthwise& shape, const float* grads, const float* images,
                               float* kernels, Parallel& parallel) {
  share(&kernel_gradients_of, shape, grads, images, kernels, shape.channels, parallel);
}

}  // namespace hologram::cpu
