// What runs, as a watcher and the statistics are told: the operations and the bytes of each pass.
#include "atlas/frame.h"

#include <string>
#include <vector>

#include "atlas/canonicalise.h"
#include "check.h"
#include "streams.h"

using namespace hologram;
using namespace hologram::test;

TEST(window_tells_a_watcher_what_runs) {
  struct Log final : Watcher {
    bool on = true;
    std::vector<std::string> lines;
    bool watches() noexcept override { return on; }
    void begin(const std::string& name) override { lines.push_back(name); }
    void end() noexcept override { lines.push_back("end"); }
  } log;
  Window::set_watcher(&log);
  Stream s;
  auto* x = s.filled({1, -2, 3});
  auto* y = s.make(3);
  const auto record = [&] {
    s.window.record(binary(Op::mul, 3, dense(y), dense(x), number(2)));
    s.window.record(binary(Op::add, 3, dense(y), dense(y), dense(x)));
  };
  record();
  s.window.flush(FlushReason::user);
  const std::vector<std::string> expected = {"hologram::flush (user)", "hologram::pass (mul, add)",
                                             "end", "end"};
  CHECK(log.lines == expected);
  s.window.flush(FlushReason::user);  // nothing to run
  log.on = false;
  record();
  s.window.flush(FlushReason::user);
  CHECK_EQ(log.lines.size(), expected.size());
  Window::set_watcher(nullptr);
  drop(x);
  drop(y);
}

TEST(window_counts_the_bytes_that_an_operand_has) {
  Stream s;
  constexpr int64_t kRows = 32, kColumns = 64;
  auto* x = s.filled(std::vector<float>(kRows * kColumns, 1.0f));
  auto* row = s.filled(std::vector<float>(kColumns, 2.0f));
  auto* y = s.make(kRows * kColumns);
  const int64_t sizes[] = {kRows, kColumns}, strides[] = {0, 4};
  s.window.start_capture();
  s.window.record({static_cast<Code>(Op::add),
                   DType::f32,
                   2,
                   kRows * kColumns,
                   sizes,
                   dense(y),
                   {dense(x), part(row, 0, strides), {}}});
  CHECK_EQ(Stream::read(y)[99], 3.0f);
  constexpr uint64_t kMatrix = 4 * kRows * kColumns;
  CHECK_EQ(s.window.stats().bytes_moved, 2 * kMatrix + 4 * kColumns);
  const auto flushed = s.window.end_capture();
  const auto passes = describe(flushed.front().plan, flushed.front().program);
  CHECK_EQ(passes.front().loaded, kMatrix + 4 * kColumns);
  CHECK_EQ(passes.front().stored, kMatrix);
  for (auto* block : {x, row, y}) drop(block);
}
