#include "atlas/op_table.h"

#include <set>
#include <string>

#include "atlas/dtype.h"
#include "check.h"

using namespace hologram;

TEST(op_table_rows_are_well_formed) {
  std::set<std::string> names;
  for (int i = 0; i < kOpCount; ++i) {
    const OpInfo& info = op_info(static_cast<Op>(i));
    CHECK(names.insert(info.name).second);
    CHECK(info.arity >= 1 && info.arity <= 3);
    CHECK(info.dtypes != 0);
    CHECK_EQ(info.dtypes >> kDTypeCount, 0u);
    // What is promoted is not computed as it is.
    constexpr DTypeSet kIntegers = kOrdered & ~kReal;
    CHECK(info.integers != Integers::promote || (info.dtypes & kIntegers) == 0);
    for (int k = 0; k < 3; ++k) {
      const bool derived = info.derivative[0] != nullptr && k < info.arity;
      CHECK_EQ(info.derivative[k] != nullptr, derived);
    }
    CHECK(!info.has(kPredicate) || info.derivative[0] == nullptr);
    // What operates on two operands from memory is numbered.
    CHECK(info.cost != Cost::arithmetic || (info.arity == 2 && info.exact == Exact::no));
    const std::string expression = info.expression;
    CHECK(expression.find('x') != std::string::npos);
    CHECK_EQ(expression.find('y') != std::string::npos, info.arity >= 2);
    CHECK_EQ(expression.find('z') != std::string::npos, info.arity == 3);
    if (info.arity == 1) {
      CHECK(!info.has(kCommutative));
      CHECK(!info.has_identity());
    } else {
      CHECK(!info.has(kInvolution));
    }
  }
}

TEST(op_table_names_follow_the_enumeration) {
  CHECK_EQ(std::string(op_info(Op::add).name), "add");
  CHECK_EQ(std::string(op_info(Op::maximum).name), "maximum");
  CHECK_EQ(op_info(Op::relu).arity, 1);
  CHECK(op_info(Op::div).supports(DType::f64));
  CHECK(!op_info(Op::div).supports(DType::i32));
  CHECK(!op_info(Op::div).supports_in_group(DType::u8));
  CHECK(op_info(Op::mul).supports_in_group(DType::bf16));
  CHECK(op_info(Op::clamp).supports_in_group(DType::i16));
  CHECK(op_info(Op::eq).has(kPredicate));
  CHECK_EQ(std::string(op_info(Op::fma).name), "fma");
  CHECK(op_info(Op::sqrt).integers == Integers::promote);
  CHECK(op_info(Op::floor).integers == Integers::keep);  // torch's floor of int64 is int64
  CHECK_EQ(kArithmeticCount, 4);
  CHECK_EQ(arithmetic_index(Op::div), 3);
  CHECK(op_info(Op::mul).has(kCommutative));
  CHECK(!op_info(Op::sub).has(kCommutative));
}

TEST(dtype_table) {
  CHECK_EQ(dtype_size(DType::b8), 1u);
  CHECK_EQ(dtype_size(DType::bf16), 2u);
  CHECK_EQ(dtype_size(DType::f32), 4u);
  CHECK_EQ(dtype_size(DType::i64), 8u);
  CHECK_EQ(dtype_size(DType::c128), 16u);
  CHECK_EQ(std::string(dtype_name(DType::f16)), "f16");
  CHECK_EQ(kDTypeCount, static_cast<int>(DType::c128) + 1);
}
