// The scans of a run over rows.
#include <algorithm>

#include "cpu/row_run.h"

namespace hologram::cpu {
namespace {

constexpr int64_t kRunningBytes = 8;  // of a running value, at most

}  // namespace

// Of each scan a value for each row of a block, or for each column.
size_t RowRun::running_bytes() const {
  const int64_t values =
      std::max(group_.scans_along ? padded(block_) : 0, group_.scans_down ? padded(columns_) : 0);
  return static_cast<size_t>(way_->scans * values * kRunningBytes);
}
char* RowRun::running_of(const Desk& desk, const Scan& scan) const {
  return desk.running + running_bytes() / way_->scans * scan.number;
}

// Some columns of the rows of a block. The pointers of operands are at its first one.
void RowRun::scan(const Desk& desk, const StageFrame& frame, const Block& block, Span columns,
                  bool operands) const {
  const auto& its = group_.group.operands;
  for (const Scan& scan : frame.stage->scans) {
    if ((scan.from.role == Role::operand) != operands) continue;
    const DType to = its[scan.to].dtype;
    const auto size = static_cast<int64_t>(dtype_size(to));
    const ScanKernels& of = kernels_.scans[static_cast<size_t>(scan.op)];
    const ScanKernels::Axis& kernels = scan.down ? of.down : of.along;
    const char* from = nullptr;
    int64_t stride = 0;  // of what is scanned
    if (operands) {
      from = frame.pointers()[scan.from.index] +
             columns.begin * static_cast<int64_t>(dtype_size(scan.dtype));
      stride = row_[scan.from.index];
    } else {
      const bool starts = is_short_ || is_whole_ || scan.from.role == Role::passing_buffer;
      const int64_t row = starts ? 0 : block.in_unit % block_;
      const int64_t at = row * padded(columns_) + (starts ? 0 : columns.begin);
      from = element_buffer(desk, scan.from) + at * size_;
      // Longer rows come one at a time.
      stride = (is_whole_ ? padded(columns_) : columns_) * size_;
    }
    const bool own = !operands || scan.dtype == kernels_.own;
    const auto kernel = (own ? kernels.of_own : kernels.of_same)[static_cast<size_t>(to)];
    char* const running = running_of(desk, scan) + (scan.down ? columns.begin * kRunningBytes : 0);
    const bool continues = scan.down ? block.first % plane_rows_ != 0 : columns.begin != 0;
    kernel(frame.pointers()[scan.to] + columns.begin * size, from, running, block.count,
           columns.length(), row_[scan.to], stride, continues);
  }
}

}  // namespace hologram::cpu
