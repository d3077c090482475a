#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/operator_name.h>

/// Random programs of operators as records: they print, and a statement can be left out without
/// changing what the others say.
namespace trellis::fuzz {

/// A tensor that a statement made. Statement n makes n · kMaxResults, n · kMaxResults + 1, …
using Id = std::int64_t;
inline constexpr Id kMaxResults = 16;

/// A tensor with its own values, made on the host and moved to the device; the layout's views
/// are taken there.
struct Literal {
  enum class Fill : std::uint8_t { kNormal, kPositive, kIndex, kEmpty };
  enum class Layout : std::uint8_t { kContiguous, kTransposed, kStepped, kOffset, kExpanded };
  std::vector<std::int64_t> sizes;
  at::ScalarType type = at::kFloat;
  Fill fill = Fill::kNormal;
  Layout layout = Layout::kContiguous;
  std::int64_t below = 1;  ///< kIndex: values are in [0, below)
  std::uint64_t seed = 0;
  bool on_host = false;  ///< stays on the CPU
};

struct Value {
  Id id;
};
struct StorageOf {
  Id id;
};
struct TheGenerator {};
struct TheDevice {};
struct NoTensor {};

using Operand = std::variant<Value, Literal, NoTensor>;
struct Operands {
  std::vector<Operand> tensors;
  bool optional = false;  ///< Tensor?[]
};
using Argument = std::variant<c10::IValue, Operand, Operands, StorageOf, TheGenerator, TheDevice>;

struct Statement {
  enum class Kind : std::uint8_t {
    kCall,      ///< an operator of the dispatcher
    kLeaf,      ///< arguments[0], copied, as a new leaf of autograd
    kBackward,  ///< gradients of arguments[0] by the leaves that live; arguments[1]: whether they
                ///< can be differentiated again
    kDrop       ///< forgets arguments[0]
  };
  Kind kind = Kind::kCall;
  c10::OperatorName op{"", ""};
  std::vector<Argument> arguments;
  Id first_result = 0;
};

struct Program {
  std::uint64_t seed = 0;
  std::vector<Statement> statements;
};

[[nodiscard]] std::string to_text(const Statement& statement);
[[nodiscard]] std::string to_text(const Program& program);

}  // namespace trellis::fuzz
