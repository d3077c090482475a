#include "tests/fuzz/generator.h"

#include <algorithm>
#include <array>
#include <map>

#include <ATen/core/dispatch/Dispatcher.h>

#include "tests/fuzz/families.h"

namespace trellis::fuzz {
namespace {

/// Beyond this many, one is dropped for each that is made.
constexpr std::size_t kMostAlive = 12;

/// LibTorch's `out=` form takes any type of mask, the device's fused operator only bool.
constexpr std::array<std::string_view, 1> kLeftOut = {"aten::native_dropout.out"};

bool can_be_called(const c10::FunctionSchema& schema) {
  if (std::find(kLeftOut.begin(), kLeftOut.end(), c10::toString(schema.operator_name())) !=
      kLeftOut.end())
    return false;
  return std::none_of(schema.arguments().begin(), schema.arguments().end(),
                      [](const c10::Argument& argument) {
                        return argument.type()->str().find("Dimname") != std::string::npos ||
                               argument.name() == "names";
                      });
}

/// Overloads by "name", in a fixed order.
const std::map<std::string, std::vector<c10::OperatorName>>& overloads() {
  static const auto* const all = [] {
    auto* const made = new std::map<std::string, std::vector<c10::OperatorName>>;
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      const auto op = c10::Dispatcher::singleton().findSchema(name);
      if (op.has_value() && name.name.starts_with("aten::") && can_be_called(op->schema()))
        (*made)[name.name].push_back(name);
    }
    for (auto& [base, names] : *made) {
      std::sort(names.begin(), names.end(),
                [](const auto& a, const auto& b) { return a.overload_name < b.overload_name; });
    }
    return made;
  }();
  return *all;
}

/// An operator under its name and, where there is one, its in-place twin.
std::vector<c10::OperatorName> variants(std::string_view name) {
  std::vector<c10::OperatorName> found;
  for (const std::string& spelling :
       {"aten::" + std::string(name), "aten::" + std::string(name) + "_"}) {
    if (const auto names = overloads().find(spelling); names != overloads().end()) {
      found.insert(found.end(), names->second.begin(), names->second.end());
    }
  }
  return found;
}

const Family& pick_family(Random& random) {
  std::int64_t total = 0;
  for (const Family& family : families()) total += family.weight;
  std::int64_t ticket = random.below(total);
  for (const Family& family : families()) {
    if ((ticket -= family.weight) < 0) return family;
  }
  return families().front();
}

}  // namespace

std::vector<std::string> unknown_operators() {
  std::vector<std::string> unknown;
  for (const Family& family : families()) {
    for (const std::string_view name : family.names) {
      if (variants(name).empty()) unknown.emplace_back(name);
    }
  }
  return unknown;
}

Statement Generator::make_tensor() {
  Statement statement;
  statement.op = {"aten::alias", ""};
  statement.arguments.emplace_back(Operand(choose_.literal(choose_.sizes(), choose_.type())));
  return statement;
}

Statement Generator::call_operator() {
  const Family& family = pick_family(random_);
  Statement statement;
  statement.op = random_.pick(variants(random_.pick(family.names)));
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
      statement.op.name.c_str(), statement.op.overload_name.c_str());
  statement.arguments = choose_.fill(op.schema(), family.hints(choose_));
  return statement;
}

Statement Generator::one_operand(Statement::Kind kind) {
  Statement statement;
  statement.kind = kind;
  if (kind == Statement::Kind::kLeaf) statement.arguments.emplace_back(choose_.floating());
  if (kind == Statement::Kind::kDrop)
    statement.arguments.emplace_back(Operand(Value{
        std::next(machine_.live().begin(), random_.below(static_cast<Id>(machine_.live().size())))
            ->first}));
  if (kind == Statement::Kind::kBackward) {
    statement.arguments.emplace_back(
        choose_.existing([](const at::Tensor& tensor) { return tensor.requires_grad(); },
                         choose_.literal({}, at::kFloat)));
    statement.arguments.emplace_back(c10::IValue(random_.chance(0.3)));
  }
  return statement;
}

Statement Generator::next() {
  Statement statement;
  const std::size_t alive = machine_.live().size();
  if (alive < 2) {
    statement = make_tensor();
  } else if (alive > kMostAlive) {
    statement = one_operand(Statement::Kind::kDrop);
  } else if (random_.chance(0.1)) {
    statement = make_tensor();
  } else if (random_.chance(0.05)) {
    statement = one_operand(Statement::Kind::kLeaf);
  } else if (random_.chance(0.08)) {
    statement = one_operand(Statement::Kind::kBackward);
  } else {
    statement = call_operator();
  }
  statement.first_result = ++statements_ * kMaxResults;
  return statement;
}

}  // namespace trellis::fuzz
