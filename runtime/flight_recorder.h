#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/transfer.h"

namespace trellis::runtime {

/// The last communications of one rank, for the texts that explain a hang or a mismatch.
class FlightRecorder {
 public:
  static constexpr std::size_t kCapacity = 32;

  void add(CommCall call, std::shared_ptr<const Transfer> transfer, std::int64_t step);
  /// "all-gather of 64 float32, #3 of tp [6, 7] (complete), step 2"; "no communication yet".
  [[nodiscard]] std::string last() const;
  /// The same text for `transfer`, which is one of the recorded.
  [[nodiscard]] std::string describe(const Transfer& transfer) const;
  /// Up to `count` communications before `transfer`, oldest first, one per line, each after
  /// `indent`.
  [[nodiscard]] std::string recent_before(const Transfer& transfer, std::size_t count,
                                          const std::string& indent) const;

 private:
  struct Entry {
    CommCall call;
    std::shared_ptr<const Transfer> transfer;
    std::int64_t step = -1;  ///< -1: not announced
  };
  static std::string describe_entry(const Entry& entry);
  /// Which of all entries ever added is `transfer`; the newest when it was overwritten.
  [[nodiscard]] std::size_t index(const Transfer& transfer) const;
  [[nodiscard]] const Entry& at(std::size_t index) const { return entries_[index % kCapacity]; }

  std::array<Entry, kCapacity> entries_;
  std::size_t added_ = 0;
};

}  // namespace trellis::runtime
