// An input plane is copied into `phases`, one for each remainder of rows and columns by the stride,
// with zeros around: of a phase, what a tap of the kernel reads for neighbouring outputs lies side
// by side. Rows of outputs are computed with the columns that a phase has beyond them, so a whole
// plane is one loop over registers, which small planes need most; what is in these columns is left
// out at the end.
#include "cpu/depthwise.h"

#include <algorithm>
#include <cstring>
#include <vector>

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

void copy(float* to, const float* from, int64_t count) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

// Planes with zeros where nothing is put, and room to be read behind the last one.
class Grid {
 public:
  Grid(int64_t rows, int64_t pitch, int64_t count)
      : pitch_(pitch),
        size_(rows * pitch),
        memory_(static_cast<size_t>(count * size_ + kDepthwiseSlack)) {}
  float* plane(int64_t number = 0) { return memory_.data() + number * size_; }
  float* row(int64_t y) { return memory_.data() + y * pitch_; }
  int64_t pitch() const { return pitch_; }
  int64_t size() const { return size_; }

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
  explicit Phases(const Depthwise& shape)
      : shape_(shape),
        grid_(shape.out_height + (shape.kernel_height - 1) / shape.stride_height,
              shape.out_width + (shape.kernel_width - 1) / shape.stride_width,
              shape.stride_height * shape.stride_width) {
    for (int64_t a = 0; a < shape.stride_height; ++a) {
      rows_.emplace_back(a, shape.stride_height, shape.pad_height, shape.height,
                         grid_.size() / pitch());
    }
    for (int64_t b = 0; b < shape.stride_width; ++b) {
      columns_.emplace_back(b, shape.stride_width, shape.pad_width, shape.width, pitch());
    }
  }

  int64_t pitch() const { return grid_.pitch(); }
  int64_t outputs() const { return shape_.out_height * pitch(); }
  const float* data() { return grid_.plane(); }

  // What reads for the first output. Weights are to be filled in.
  std::vector<DepthwiseTap> taps() const {
    std::vector<DepthwiseTap> taps;
    const int64_t sh = shape_.stride_height, sw = shape_.stride_width;
    for (int64_t y = 0; y < shape_.kernel_height; ++y) {
      for (int64_t x = 0; x < shape_.kernel_width; ++x) {
        const int64_t phase = y % sh * sw + x % sw;
        taps.push_back({phase * grid_.size() + y / sh * pitch() + x / sw, 0});
      }
    }
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
        for (int64_t row = rows.first; row < rows.last; ++row) {
          const float* from = plane + rows[row] * shape_.width + columns[columns.first];
          float* const first = to + row * pitch() + columns.first;
          if (columns.stride == 1) {
            copy(first, from, count);
          } else {
            for (int64_t i = 0; i < count; ++i) first[i] = from[i * columns.stride];
          }
        }
      }
    }
  }

 private:
  const Depthwise& shape_;
  Grid grid_;
  std::vector<Line> rows_, columns_;
};

}  // namespace

void depthwise(const Depthwise& shape, const float* images, const float* kernels, float* outputs,
               int64_t begin, int64_t end) {
  Phases phases(shape);
  const int64_t pitch = phases.pitch(), width = shape.out_width;
  std::vector<DepthwiseTap> taps = phases.taps();
  Grid sums(shape.out_height, pitch, 1);
  for (int64_t n = begin; n < end; ++n) {
    const float* const kernel = kernels + n % shape.channels * shape.taps();
    for (size_t t = 0; t < taps.size(); ++t) taps[t].weight = kernel[t];
    phases.fill(images + n * shape.plane());
    float* const out = outputs + n * shape.out_plane();
    loops().sums(taps.data(), shape.taps(), phases.data(), sums.plane(), phases.outputs());
    for (int64_t y = 0; y < shape.out_height; ++y) copy(out + y * width, sums.row(y), width);
  }
}

// Each phase of the image's gradient is a convolution with the taps that have read it, the other
// way round, over the gradient of the outputs with zeros around.
void depthwise_input_gradient(const Depthwise& shape, const float* grads, const float* kernels,
                              float* images, int64_t begin, int64_t end) {
  const int64_t sh = shape.stride_height, sw = shape.stride_width;
  const int64_t above = (shape.kernel_height - 1) / sh, before = (shape.kernel_width - 1) / sw;
  const int64_t rows = shape.out_height + above, columns = shape.out_width + before;
  Grid grid(rows + above, columns + before, 1);
  const int64_t pitch = grid.pitch();
  Grid sums(rows, pitch, 1);
  std::vector<DepthwiseTap> taps;
  for (int64_t n = begin; n < end; ++n) {
    const float* const kernel = kernels + n % shape.channels * shape.taps();
    const float* const grad = grads + n * shape.out_plane();
    for (int64_t y = 0; y < shape.out_height; ++y) {
      copy(grid.row(y + above) + before, grad + y * shape.out_width, shape.out_width);
    }
    float* const image = images + n * shape.plane();
    std::fill_n(image, shape.plane(), 0.0F);  // what no tap has read
    for (int64_t a = 0; a < sh; ++a) {
      for (int64_t b = 0; b < sw; ++b) {
        taps.clear();
        for (int64_t y = a; y < shape.kernel_height; y += sh) {
          for (int64_t x = b; x < shape.kernel_width; x += sw) {
            taps.push_back(
                {(above - y / sh) * pitch + before - x / sw, kernel[y * shape.kernel_width + x]});
          }
        }
        const auto count = static_cast<int64_t>(taps.size());
        if (count == 0) continue;
        loops().sums(taps.data(), count, grid.plane(), sums.plane(), rows * pitch);
        const Line its_rows(a, sh, shape.pad_height, shape.height, rows);
        const Line its_columns(b, sw, shape.pad_width, shape.width, columns);
        for (int64_t row = its_rows.first; row < its_rows.last; ++row) {
          float* const to = image + its_rows[row] * shape.width + its_columns.offset;
          const float* const from = sums.row(row);
          for (int64_t i = its_columns.first; i < its_columns.last; ++i) to[i * sw] = from[i];
        }
      }
    }
  }
}

// In columns beyond the outputs the gradient is zero, and what is there of the image is left out:
// zero times infinity is no zero.
void depthwise_weight_gradient(const Depthwise& shape, const float* grads, const float* images,
                               float* kernels, int64_t begin, int64_t end) {
  Phases phases(shape);
  const int64_t pitch = phases.pitch(), taps = shape.taps();
  const std::vector<DepthwiseTap> all = phases.taps();
  Grid grid(shape.out_height, pitch, 1);
  std::vector<uint32_t> inside(static_cast<size_t>(grid.size() + kDepthwiseSlack));
  for (int64_t y = 0; y < shape.out_height; ++y) {
    std::fill_n(inside.data() + y * pitch, shape.out_width, ~0U);
  }
  for (int64_t channel = begin; channel < end; ++channel) {
    float* const kernel = kernels + channel * taps;
    std::fill_n(kernel, taps, 0.0F);
    for (int64_t image = 0; image < shape.images; ++image) {
      const int64_t n = image * shape.channels + channel;
      phases.fill(images + n * shape.plane());
      const float* const grad = grads + n * shape.out_plane();
      for (int64_t y = 0; y < shape.out_height; ++y) {
        copy(grid.row(y), grad + y * shape.out_width, shape.out_width);
      }
      loops().products(all.data(), taps, phases.data(), grid.plane(), inside.data(),
                       phases.outputs(), kernel);
    }
  }
}

}  // namespace hologram::cpu
