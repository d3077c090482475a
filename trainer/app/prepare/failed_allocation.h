#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"

namespace trellis::trainer {

/// The error (kDoesNotFit) for an allocation of host memory that failed; none: `thrown` is
/// something else.
[[nodiscard]] std::optional<Error> failed_allocation(const std::exception& thrown);

/// Ends the process when a rank's failure does not end it soon: the other ranks may compute for
/// minutes before they meet it at a communication.
class LastResort {
 public:
  LastResort();
  ~LastResort();
  LastResort(const LastResort&) = delete;
  LastResort& operator=(const LastResort&) = delete;
  /// From here on the process has less than a second to end; then `error` is printed and its code
  /// is the exit code. The first call counts. Allocates nothing large and starts no thread: there
  /// may be no memory for either.
  void arm(const Error& error);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trellis::trainer
