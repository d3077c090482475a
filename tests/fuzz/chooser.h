#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/function_schema.h>

#include "tests/fuzz/machine.h"
#include "tests/fuzz/program.h"

namespace trellis::fuzz {

/// SplitMix64: the same numbers everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n));
  }
  std::int64_t between(std::int64_t low, std::int64_t high) { return low + below(high - low + 1); }
  bool chance(double p) { return static_cast<double>(next() >> 11U) * 0x1p-53 < p; }
  template <typename T>
  const T& pick(const std::vector<T>& from) {
    return from[static_cast<std::size_t>(below(static_cast<std::int64_t>(from.size())))];
  }

 private:
  std::uint64_t state_;
};

/// Arguments that a family of operators needs, by parameter name; the rest is chosen by type and
/// name.
using Hints = std::map<std::string, Argument>;

/// A hint that is no parameter: `out=` may share memory with an operand. Other kernels read their
/// operands after they resized it.
inline constexpr const char* kOutMayAlias = "out may alias";

/// State from which a generator draws an argument: the tensors that live (their metadata only) and
/// the operator's first tensor.
class Chooser {
 public:
  Chooser(Random& numbers, const Machine& machine) : random(numbers), machine_(machine) {}

  /// An existing tensor, or (rarely, or when none fits) a literal. `fits` sees metadata only.
  template <typename Predicate>
  Operand existing(Predicate fits, const Literal& otherwise);
  Operand any();
  Operand floating();
  Literal literal(std::vector<std::int64_t> sizes, at::ScalarType type);
  Literal indices(std::vector<std::int64_t> sizes, std::int64_t below);
  at::ScalarType type();
  at::ScalarType floating_type();
  std::vector<std::int64_t> sizes(std::int64_t most_dims = 4);
  std::vector<std::int64_t> broadcast(const std::vector<std::int64_t>& sizes);

  /// Sizes and type that an operand will have.
  [[nodiscard]] std::vector<std::int64_t> sizes_of(const Operand& operand) const;
  [[nodiscard]] at::ScalarType type_of(const Operand& operand) const;
  [[nodiscard]] bool requires_grad(const Operand& operand) const;
  [[nodiscard]] const at::Tensor* value(const Operand& operand) const;

  /// Fills every parameter of a schema.
  std::vector<Argument> fill(const c10::FunctionSchema& schema, const Hints& hints);

  Random& random;

 private:
  Argument argument(const c10::Argument& parameter, const Hints& hints);
  Argument by_type(const c10::Argument& parameter);
  Argument list(const c10::Argument& parameter, const c10::Type& element);
  Operand tensor(const c10::Argument& parameter);
  void note_use(const Argument& argument);
  Operands tensor_list(bool optional, bool written);
  std::int64_t integer(const std::string& name);
  std::vector<std::int64_t> integers(const std::string& name);
  std::int64_t dim();

  const Machine& machine_;
  Operand first_;  ///< the first tensor of the operator that is being filled
  bool has_first_ = false;
  bool out_may_alias_ = false;
  std::vector<const c10::StorageImpl*> used_;  ///< by the arguments so far
  std::size_t list_length_ = 0;                ///< of the first tensor list: the others are as long
};

inline c10::IValue ints(const std::vector<std::int64_t>& values) {
  return c10::List<std::int64_t>(values);
}

template <typename Predicate>
Operand Chooser::existing(Predicate fits, const Literal& otherwise) {
  std::vector<Id> ids;
  for (const auto& [id, tensor] : machine_.live()) {
    if (fits(tensor)) ids.push_back(id);
  }
  if (ids.empty() || random.chance(0.1)) return otherwise;
  return Value{random.pick(ids)};
}

}  // namespace trellis::fuzz
