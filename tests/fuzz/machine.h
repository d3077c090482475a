#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "tests/fuzz/program.h"

namespace trellis::fuzz {

/// The visible result of a statement. It must be equal on two machines.
struct Outcome {
  bool skipped = false;            ///< it needs a tensor that a left-out statement would have made
  std::string error;               ///< type and first line, devices' names made equal
  std::vector<std::string> plain;  ///< results that are no tensors
  friend bool operator==(const Outcome&, const Outcome&) = default;
};
[[nodiscard]] std::string to_text(const Outcome& outcome);

/// Runs statements on one device and keeps the tensors that live.
class Machine {
 public:
  Machine(at::Device device, std::uint64_t seed);
  Outcome run(const Statement& statement);
  [[nodiscard]] const std::map<Id, at::Tensor>& live() const { return live_; }
  /// Those whose version the last statement counted up, as autograd must know.
  [[nodiscard]] const std::set<Id>& changed() const { return changed_; }
  /// Drops what a statement made.
  void forget(const Statement& statement) {
    live_.erase(live_.lower_bound(statement.first_result), live_.end());
  }

 private:
  Outcome call(const Statement& statement);
  void leaf(const Statement& statement);
  void backward(const Statement& statement);
  [[nodiscard]] at::Tensor tensor(const Operand& operand) const;
  [[nodiscard]] c10::IValue ivalue(const Argument& argument) const;
  [[nodiscard]] at::Tensor make(const Literal& literal) const;
  void keep(Id& id, const at::Tensor& result);
  void define_tails(const Statement& statement,
                    const std::map<c10::StorageImpl*, std::size_t>& before);

  at::Device device_;
  at::Generator generator_;
  std::map<Id, at::Tensor> live_;
  std::set<Id> changed_;
};

/// Nothing, or in words the first thing in which the tensors that live on two machines differ:
/// sizes, strides, offset, type, bytes of the storage, who shares storage with whom, autograd's
/// view, elements bit for bit.
[[nodiscard]] std::optional<std::string> difference(const Machine& expected, const Machine& got);
/// The same without the elements.
[[nodiscard]] std::optional<std::string> layout_difference(const Machine& expected,
                                                           const Machine& got);

}  // namespace trellis::fuzz
