#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "trainer/files/checkpoint/containers/value.h"

/// Pickles as data: no class is imported, no function is called.
namespace trellis::checkpoint {

/// How a format reads its pickles.
struct PickleOptions {
  std::string where;  ///< file and part of it, for errors
  /// Classes and functions ("module.name") in addition to the plain ones of Python, torch and NumPy
  /// that every pickle may name.
  std::set<std::string> classes;
  /// Returns the value that a persistent id represents; empty: such ids are an error.
  std::function<Value(const Value& id)> persistent;
  /// The value of a call of a function of `classes` or of the plain ones. None: it stays an object.
  std::function<std::optional<Value>(const std::string& function, const Value::List& arguments)>
      call;
};

/// Reads a pickle of protocol 2–5 as PyTorch and Python's pickler write it: opcodes and
/// classes are those of an allow-list. Throws ConfigError with `where`, the offset and the opcode
/// or class: an opcode or class that is not allowed, ints beyond 64 bits, cycles, nesting deeper
/// than 200, a cut or malformed stream, or shared parts that would unfold to far more than the
/// file. Sizes are checked against the bytes that are left before memory is allocated.
[[nodiscard]] Value read_pickle(std::span<const std::byte> bytes, const PickleOptions& options);

struct PickleWriteOptions {
  /// Returns the value that is written in place of a tensor. REQUIRED when the value holds tensors.
  std::function<Value(std::int64_t index)> tensor;
  /// A call of this name represents a persistent id, which is its only argument; "": none does.
  std::string persistent_name;
};

/// Protocol 2, which every Python 3 and torch.load(weights_only=True) read.
[[nodiscard]] std::string write_pickle(const Value& value, const PickleWriteOptions& options = {});

}  // namespace trellis::checkpoint
