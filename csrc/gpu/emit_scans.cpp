// A thread for each row or column that is scanned, or a block for some rows.
#include "gpu/emitter.h"
#include "gpu/op_text.h"

namespace hologram::gpu {
namespace {

// Elements of a scan that a thread loads before it stores one.
constexpr unsigned kScanned = 8;
// Of a row in a tile, with a thread each.
constexpr unsigned kScanParts = 8;

}  // namespace

// The type of a scan's running value.
std::string Emitter::running_type(const Node& scan) const {
  if ((dtype_bit(scan.dtype) & kHalves) != 0) return "hg_f32";
  if ((dtype_bit(scan.dtype) & kFloating) == 0) return "hg_i64";
  return type_ == ComputeType::f64 ? own_ : "hg_double";
}

std::string Emitter::running_start(const Node& scan) {
  const std::string type = running_type(scan);
  return type + "(" + (op_info(scan.op).identity == 1.0 ? "1" : "0") + ")";
}

// What is scanned, in the type of the running value.
std::string Emitter::scanned(const Node& scan) {
  const std::string type = running_type(scan);
  return type == own_ ? use(scan.a) : "hg_convert<" + type + ">(" + use(scan.a) + ")";
}

// The value of a scan where the running value is y. Through its dtype, of a half one a float's
// rounding.
std::string Emitter::of_running(const Node& scan, const std::string& y) const {
  const std::string type = running_type(scan);
  if (scan.dtype == own_dtype(type_)) {
    // A NaN of a sum is the device's.
    if (type == "hg_double") return "hg_narrowed(" + y + ")";
    return type == own_ ? y : "hg_convert<" + own_ + ">(" + y + ")";
  }
  return type == own_
             ? rounded_text(y, type_, scan.dtype)
             : "hg_convert<" + own_ + ">(hg_convert<" + type_text(scan.dtype) + ">(" + y + "))";
}

void Emitter::scan() {
  if (is_tiled(step_) && variant_.team != Team::thread) return scan_tiles();
  depth_ = 1;
  const auto scans = nodes_of(nodes_, NodeKind::scan);
  const bool down = step_.axis == kMiddle;
  const std::string columns = parameter(Parameter::Kind::columns);
  const std::string rows = parameter(Parameter::Kind::rows);
  for (const uint16_t i : scans) {
    line(running_type(nodes_[i]) + " " + fold(i) + " = " + running_start(nodes_[i]) + ";");
  }
  // A known number of elements at a time, which are all loaded before one of them is stored.
  const std::string some = number(kScanned) + "u";
  const std::string at = down ? "m" : "c", length = down ? rows : columns;
  for (const uint16_t i : scans) {
    line(running_type(nodes_[i]) + " " + fold(i) + "x[" + number(kScanned) + "];");
  }
  open("for (" + index_ + " begin = 0; begin < " + length + "; begin += " + some + ")");
  const auto each = [&](const std::function<void()>& body) {
    line("HG_UNROLL");
    open("for (hg_u32 k = 0; k < " + some + "; ++k)");
    line("const " + index_ + " " + at + " = begin + k;");
    open("if (" + at + " < " + length + ")");
    if (down) line("const " + index_ + " r = l * " + rows + " + m;");
    line("const " + index_ + " e = r * " + columns + " + c;");
    body();
    close();
    close();
  };
  each([&] {
    emit_all(scans);
    for (const uint16_t i : scans) line(fold(i) + "x[k] = " + scanned(nodes_[i]) + ";");
  });
  each([&] {
    for (const uint16_t i : scans) {
      const Node& node = nodes_[i];
      const std::string type = running_type(node);
      line(fold(i) + " = " + apply(node.op, type, fold(i), fold(i) + "x[k]", type + "(0)") + ";");
      line("const " + own_ + " " + value(i) + " = " + of_running(node, fold(i)) + ";");
    }
    for (const uint16_t store : stores()) emit_store(nodes_[store]);
  });
  close();
  std::string text = thread_text() + return_text("t");
  if (down) {
    text += "  const " + index_ + " c = t % " + columns + ";\n";
    text += "  const " + index_ + " l = t / " + columns + ";\n";
  } else {
    text += "  const " + index_ + " r = t;\n" + row_places();
  }
  body_ = text + body_;
}

// A thread for each row, of the first warp.
void Emitter::scan_by_row(const Node& node, const std::string& running, const std::string& height,
                          const std::string& of_row, const std::string& width, unsigned vecs) {
  const std::string type = running_type(node);
  open("if (i - 1u < tiles && HG_LID < " + height + ")");
  line("const hg_u32 first = (hg_u32((i - 1u) % 3u) * " + height + " + HG_LID) * " + of_row + ";");
  line("const " + index_ + " left = " + parameter(Parameter::Kind::columns) + " - (i - 1u) * " +
       width + ";");
  line("const hg_u32 count = left < " + width + " ? hg_u32(left) : " + width + ";");
  // While four vectors are scanned, the four after them are on their way.
  const auto load = [&](const std::string& to, const std::string& at) {
    line("HG_UNROLL");
    line("for (hg_u32 k = 0; k < 4u; ++k) " + to + "[k] = hg_vec_of<" + type + ">(shared[first + " +
         at + " + k]);");
  };
  line("hg_vec<" + type + "> even[4], odd[4];");
  load("even", "0u");
  load("odd", "4u");
  open("for (hg_u32 at = 0; at * " + number(type == "hg_f32" ? 4 : 2) + "u < count; at += 8u)");
  for (const bool is_odd : {false, true}) {
    const std::string now = is_odd ? "odd" : "even";
    const std::string at = is_odd ? "at + 4u" : "at";
    line("HG_UNROLL");
    open("for (hg_u32 k = 0; k < 4u; ++k)");
    line("HG_UNROLL");
    open("for (hg_u32 q = 0; q < " + number(type == "hg_f32" ? 4 : 2) + "u; ++q)");
    line(running + " = " +
         apply(node.op, type, running, "hg_vec_get(" + now + "[k], q)", type + "(0)") + ";");
    line("hg_vec_set(" + now + "[k], q, " + running + ");");
    close();
    line("shared[first + " + at + " + k] = hg_words_of(" + now + "[k]);");
    close();
    // Behind the last ones what is read is not needed.
    load(now, "(" + at + " + 8u) % " + number(vecs) + "u");
  }
  close();
  close();
}

// Of `scan_in_parts`: vectors of f64, of floats, and both kinds of two tiles, where each part has
// one more, so that parts begin in other banks.
struct Emitter::PartedTile {
  unsigned of_part, row, tile, float_row, float_tile, all;
  explicit PartedTile(ScanTile its)
      : of_part(its.columns / kScanParts / 2),
        row((of_part + 1) * kScanParts),
        tile(row * its.rows),
        float_row((of_part / 2 + 1) * kScanParts),
        float_tile(float_row * its.rows),
        all(2 * (tile + float_tile)) {}
};

// Threads of the first warp have each a part of a row: they begin with the sum of what is before
// it, added up in another order. Where the next thread begins with other bits than a thread ends
// with, sums have been rounded, and a thread goes through the row, one element after the other.
// Behind two tiles of elements are two of the floats that sums become. The last vector of a row,
// which is no element, is what the row has come to.
void Emitter::scan_in_parts(const Node& node, const std::string& start, const PartedTile& its) {
  const std::string type = running_type(node);
  const auto add = [&](const std::string& x, const std::string& y) {
    return x + " = " + apply(node.op, type, x, y, type + "(0)") + ";";
  };
  const std::string parts = number(kScanParts) + "u", of_part = number(its.of_part) + "u";
  const std::string last = number(its.row - 1) + "u";
  const auto each = [&](const std::string& step, const std::string& end) {
    line("HG_UNROLL");
    open("for (hg_u32 k = " + step + "; k < " + end);
  };
  const auto each_vec = [&] { each("0", of_part + "; ++k)"); };
  const auto each_distance = [&] { each("1u", parts + "; k <<= 1)"); };
  const auto loaded = [&](const std::string& at) {
    return "hg_vec_of<" + type + ">(shared[" + at + "])";
  };
  open("if (i - 1u < tiles)");
  line("const hg_u32 part = HG_LID % " + parts + ", row = HG_LID / " + parts + ";");
  line("const hg_u32 here = row * " + number(its.row) + "u, now = hg_u32((i - 1u) % 2u) * " +
       number(its.tile) + "u + here;");
  line("const hg_u32 to = " + number(2 * its.tile) + "u + hg_u32((i - 1u) % 2u) * " +
       number(its.float_tile) + "u + row * " + number(its.float_row) + "u;");
  line(type + " carried = " + start + ";");
  line("if (i != 1u) carried = hg_vec_get(" +
       loaded("hg_u32(i % 2u) * " + number(its.tile) + "u + here + " + last) + ", 0u);");
  line(type + " sums[4] = {" + type + "(0), " + type + "(0), " + type + "(0), " + type + "(0)};");
  each_vec();
  line("const hg_vec<" + type +
       "> v = " + loaded("now + part * " + number(its.of_part + 1) + "u + k") + ";");
  line(add("sums[k % 2u]", "hg_vec_get(v, 0u)"));
  line(add("sums[2u + k % 2u]", "hg_vec_get(v, 1u)"));
  close();
  line(add("sums[0]", "sums[1]"));
  line(add("sums[2]", "sums[3]"));
  line(add("sums[0]", "sums[2]"));
  line(type + " before = " + type + "(0);");
  each_distance();
  line("const " + type + " other = hg_shfl_xor(sums[0], k);");
  line("if ((HG_LID & k) != 0u) " + add("before", "other"));
  line(add("sums[0]", "other"));
  close();
  line(add("before", "carried"));
  // The vectors of a part, two of which become one of floats.
  const auto go = [&](const std::string& sum, const std::string& part) {
    each("0", of_part + "; k += 2u)");
    line("hg_vec<hg_f32> y;");
    line("HG_UNROLL");
    open("for (hg_u32 q = 0; q < 4u; ++q)");
    line("const hg_vec<" + type + "> v = " +
         loaded("now + " + part + " * " + number(its.of_part + 1) + "u + k + q / 2u") + ";");
    line(add(sum, "hg_vec_get(v, q % 2u)"));
    line("hg_vec_set(y, q, " + of_running(node, sum) + ");");
    close();
    line("shared[to + " + part + " * " + number(its.of_part / 2 + 1) +
         "u + k / 2u] = hg_words_of(y);");
    close();
  };
  line(type + " running = before;");
  go("running", "part");
  line("const " + type + " next = hg_shfl_down(before, 1u);");
  line("hg_u32 is_rounded = part != " + number(kScanParts - 1) +
       "u && hg_bits(next) != hg_bits(running) ? 1u : 0u;");
  each_distance();
  line("is_rounded |= hg_shfl_xor(is_rounded, k);");
  close();
  open("if (part == " + number(kScanParts - 1) + "u)");
  open("if (is_rounded != 0u)");
  line("running = carried;");
  open("for (hg_u32 g = 0; g < " + parts + "; ++g)");
  go("running", "g");
  close();
  close();
  line("hg_vec<" + type + "> all;");
  line("hg_vec_set(all, 0u, running);");
  line("hg_vec_set(all, 1u, running);");
  line("shared[now + " + last + "] = hg_words_of(all);");
  close();
  close();
}

// Some rows of a block, tile by tile: its first warp, a thread for each row, scans a tile in shared
// memory while the others load the next one and store the one before. An element comes after the
// one before it, in whatever type, so the fewer instructions a step of a row takes and the more
// blocks have rows, the better. Sums in f64 of floats are rarely rounded: there several threads
// have a row (`scan_in_parts`).
void Emitter::scan_tiles() {
  depth_ = 1;
  const uint16_t i = nodes_of(nodes_, NodeKind::scan).front();
  const Node& node = nodes_[i];
  const std::string type = running_type(node);
  const std::string start = running_start(node);
  const ScanTile tile = scan_tile(variant_.team, type == "hg_f32");
  const unsigned of_vec = type == "hg_f32" ? 4 : 2;
  const unsigned vecs = tile.columns / of_vec;
  const bool in_parts = variant_.team == Team::block && type == "hg_double" &&
                        node.dtype == DType::f32 && op_info(node.op).identity == 0.0;
  const PartedTile parted(tile);
  const unsigned pitch = vecs + 1;  // so that rows begin in other banks
  const std::string height = number(tile.rows) + "u", width = number(tile.columns) + "u";
  const std::string of_row = number(pitch) + "u";
  const unsigned of_thread = tile.rows * tile.columns / kTileThreads;
  const std::string columns = parameter(Parameter::Kind::columns);
  const std::string rows = parameter(Parameter::Kind::threads);
  line("HG_SHARED(hg_u32x4, shared, " + number(in_parts ? parted.all : 3 * tile.rows * pitch) +
       ")");
  line("HG_SHARED_PTR(hg_u32) const words = reinterpret_cast<HG_SHARED_PTR(hg_u32)>(shared);");
  line("const " + index_ + " r0 = " + index_ + "(HG_BID) * " + height + ";");
  line("const " + index_ + " tiles = (" + columns + " + " + number(tile.columns - 1) + "u) / " +
       width + ";");
  if (!in_parts) line(type + " " + fold(i) + " = " + start + ";");
  open("for (" + index_ + " i = 0; i < tiles + 2u; ++i)");

  open("if (HG_LID < HG_WARP)");
  if (in_parts) {
    scan_in_parts(node, start, parted);
  } else {
    scan_by_row(node, fold(i), height, of_row, width, vecs);
  }
  close();
  open("else");
  line(type + " x[" + number(of_thread) + "];");
  // Element k of a thread's in a tile.
  const auto each = [&](const std::string& which, bool is_whole,
                        const std::function<void()>& body) {
    line("HG_UNROLL");
    open("for (hg_u32 k = 0; k < " + number(of_thread) + "u; ++k)");
    line("const hg_u32 j = HG_LID - HG_WARP + k * " + number(kTileThreads) + "u;");
    line("const " + index_ + " r = r0 + j / " + width + ";");
    line("const " + index_ + " c = " + which + " * " + width + " + j % " + width + ";");
    if (!is_whole) open("if (r < " + rows + " && c < " + columns + ")");
    const size_t begin = body_.size();
    needed_.clear();
    body();
    const std::string indent(2 * (depth_ - 1), ' ');
    std::string places = row_places(indent);
    if (needs('e')) {
      places += indent + "  const " + index_ + " e = r * " + columns + " + c;\n";
    }
    needed_.clear();
    body_.insert(begin, places);
    if (!is_whole) close();
    close();
  };
  // The place of element j of tile `which`: of what is scanned, or of what comes of it.
  const auto in_tile = [&](const std::string& which, bool is_scanned) {
    const std::string row = "j / " + width, column = "j % " + width;
    if (!in_parts) {
      return "(hg_u32(" + which + " % 3u) * " + height + " + " + row + ") * " +
             number(pitch * of_vec) + "u + " + column;
    }
    const unsigned of_vec = is_scanned ? 4 : 2;
    const unsigned first = is_scanned ? 2 * parted.tile * of_vec : 0;
    const unsigned of_tile = (is_scanned ? parted.float_tile : parted.tile) * of_vec;
    const unsigned of_row = (is_scanned ? parted.float_row : parted.row) * of_vec;
    return number(first) + "u + hg_u32(" + which + " % 2u) * " + number(of_tile) + "u + " + row +
           " * " + number(of_row) + "u + " + column + " + " + column + " / " +
           number(tile.columns / kScanParts) + "u * " + number(of_vec) + "u";
  };
  open("if (i < tiles)");
  open("if (r0 + " + height + " <= " + rows + " && (i + 1u) * " + width + " <= " + columns + ")");
  const auto make = [&] {
    emit_all({i});
    line("x[k] = " + scanned(node) + ";");
  };
  each("i", true, make);
  close();
  open("else");
  line("HG_UNROLL");
  line("for (hg_u32 k = 0; k < " + number(of_thread) + "u; ++k) x[k] = " + type + "(0);");
  each("i", false, make);
  close();
  close();
  open("if (i >= 2u)");
  each("(i - 2u)", false, [&] {
    const std::string its = in_parts ? own_ : type;
    line("const " + its + " y = hg_word_get(hg_tag<" + its + ">(), words, " +
         in_tile("(i - 2u)", true) + ");");
    line("const " + own_ + " " + value(i) + " = " + (in_parts ? "y" : of_running(node, "y")) + ";");
    for (const uint16_t store : stores()) emit_store(nodes_[store]);
  });
  close();
  open("if (i < tiles)");
  line("HG_UNROLL");
  open("for (hg_u32 k = 0; k < " + number(of_thread) + "u; ++k)");
  line("const hg_u32 j = HG_LID - HG_WARP + k * " + number(kTileThreads) + "u;");
  line("hg_word_set(words, " + in_tile("i", false) + ", x[k]);");
  close();
  close();
  close();
  line("HG_SYNC();");
  close();
}

}  // namespace hologram::gpu
