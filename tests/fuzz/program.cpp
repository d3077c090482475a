#include "tests/fuzz/program.h"

#include <c10/util/StringUtil.h>

namespace trellis::fuzz {
namespace {

constexpr const char* kFills[] = {"normal", "positive", "index", "empty"};
constexpr const char* kLayouts[] = {"", " transposed", " stepped", " offset", " expanded"};

std::string to_text(const Literal& literal) {
  return c10::str(
      kFills[static_cast<int>(literal.fill)], "(", c10::IntArrayRef(literal.sizes), " ",
      literal.type, kLayouts[static_cast<int>(literal.layout)],
      literal.fill == Literal::Fill::kIndex ? c10::str(" below ", literal.below) : std::string(),
      literal.on_host ? " on cpu" : "", " seed ", literal.seed, ")");
}

std::string to_text(const Operand& operand) {
  if (const auto* value = std::get_if<Value>(&operand)) return c10::str("%", value->id);
  if (const auto* literal = std::get_if<Literal>(&operand)) return to_text(*literal);
  return "none";
}

std::string to_text(const Argument& argument) {
  if (const auto* ivalue = std::get_if<c10::IValue>(&argument)) return c10::str(*ivalue);
  if (const auto* operand = std::get_if<Operand>(&argument)) return to_text(*operand);
  if (const auto* storage = std::get_if<StorageOf>(&argument))
    return c10::str("storage(%", storage->id, ")");
  if (std::holds_alternative<TheGenerator>(argument)) return "generator";
  if (std::holds_alternative<TheDevice>(argument)) return "device";
  std::string text = "[";
  for (const Operand& operand : std::get<Operands>(argument).tensors)
    text += (text.size() > 1 ? ", " : "") + to_text(operand);
  return text + "]";
}

}  // namespace

std::string to_text(const Statement& statement) {
  constexpr const char* kKinds[] = {"", "leaf", "backward", "drop"};
  std::string text =
      c10::str("%", statement.first_result, " = ", kKinds[static_cast<int>(statement.kind)]);
  if (statement.kind == Statement::Kind::kCall) text += c10::toString(statement.op);
  const char* separator = "(";
  for (const Argument& argument : statement.arguments) {
    text += separator + to_text(argument);
    separator = ", ";
  }
  return text + ")";
}

std::string to_text(const Program& program) {
  std::string text;
  for (const Statement& statement : program.statements) text += "  " + to_text(statement) + "\n";
  return text;
}

}  // namespace trellis::fuzz
