#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/calls/flight_dump.h"
#include "runtime/calls/transfer.h"

namespace trellis::runtime {

/// The last communications of one rank, for the texts that explain a hang or a mismatch and for
/// dumps.
class FlightRecorder {
 public:
  static constexpr std::size_t kCapacity = 2048;

  void add(const Side& side, std::shared_ptr<const Transfer> transfer, std::int64_t step,
           CallPlace place = {});
  /// "all-gather of 64 Float, #3 of tp [6, 7] (complete), step 2, 256 bytes, in layer=…, at …";
  /// "no communication yet".
  [[nodiscard]] std::string last() const;
  /// The same text for `transfer`, which is one of the recorded.
  [[nodiscard]] std::string describe(const Transfer& transfer) const;
  /// Up to `count` communications before `transfer`, oldest first, one per line, each after
  /// `indent`.
  [[nodiscard]] std::string recent_before(const Transfer& transfer, std::size_t count,
                                          const std::string& indent) const;
  /// All that it has, oldest first. When some were overwritten: from the first step that is whole,
  /// so that ranks of unequal work begin at a place that all of them have.
  [[nodiscard]] std::vector<FlightEntry> entries() const;

 private:
  struct Entry {
    CommCall call;
    CallPlace place;
    std::shared_ptr<const Transfer> transfer;
    std::int64_t step = -1;  ///< -1: not announced
    std::int64_t input_elements = 0, output_elements = 0;
    std::int64_t in_step = 0;
    std::int64_t began_ns = 0;
  };
  static std::string describe_entry(const Entry& entry);
  static FlightEntry record_of(const Entry& entry);
  /// The place of `transfer` among all entries ever added; the newest when it was overwritten.
  [[nodiscard]] std::size_t index(const Transfer& transfer) const;
  [[nodiscard]] std::size_t oldest() const { return added_ - entries_.size(); }
  [[nodiscard]] const Entry& at(std::size_t index) const { return entries_[index % kCapacity]; }

  std::vector<Entry> entries_;  ///< up to kCapacity; then the oldest are overwritten
  std::size_t added_ = 0;
};

}  // namespace trellis::runtime
