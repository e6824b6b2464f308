#include "gpu/op_text.h"

#include <cmath>

namespace hologram::gpu {

std::string op_text(const OpInfo& info) {
  const std::string name = info.name, expression = info.expression;
  return "template <class T>\nHG_DEV T hg_op_" + name + "(T x, T y, T z) {\n  return " +
         expression + ";\n}\n";
}

std::string op_table_text() {
  std::string text;
  for (const OpInfo& info : kOpInfos) text += op_text(info);
  return text;
}

std::string type_text(DType dtype) {
  return std::string("hg_") + dtype_name(dtype);
}

std::string identity_text(const OpInfo& info, ComputeType type) {
  const double identity = info.identity;
  const std::string name = type_text(type);
  if (std::isinf(identity)) {
    return "hg_" + std::string(identity < 0 ? "lowest" : "highest") + "<" + name + ">()";
  }
  // Of all the rows that have a fold it is a whole number.
  const std::string number = std::to_string(static_cast<int>(std::abs(identity)));
  if (type == ComputeType::i64) return name + "(" + (identity < 0 ? "-" : "") + number + ")";
  return (std::signbit(identity) ? "-" : "") + name + "(" + number + ")";
}

std::string rounded_text(const std::string& expression, ComputeType type, DType dtype) {
  if (dtype == own_dtype(type)) return expression;
  const std::string own = type_text(type);
  if (dtype == DType::b8) {
    return "select(" + expression + " != " + own + "(0), " + own + "(1), " + own + "(0))";
  }
  if (type == ComputeType::f32 && dtype == DType::bf16) return "hg_round_bf16(" + expression + ")";
  if (type == ComputeType::f32 && dtype == DType::f16) return "hg_round_f16(" + expression + ")";
  return "hg_convert<" + own + ">(hg_convert<" + type_text(dtype) + ">(" + expression + "))";
}

}  // namespace hologram::gpu
