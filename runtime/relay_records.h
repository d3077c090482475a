#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/call_place.h"
#include "runtime/flight_recorder.h"

namespace trellis::runtime {

/// What a rank that is a separate process communicated last, over another library that carries
/// its bytes. A failure of that library is explained by the ranks together: the one where it fails
/// leaves it here, a thread of Python asks the others and answers.
class RelayRecords {
 public:
  explicit RelayRecords(int rank) : rank_(rank) { scopes_.enter(); }
  ~RelayRecords() { scopes_.leave(); }
  RelayRecords(const RelayRecords&) = delete;
  RelayRecords& operator=(const RelayRecords&) = delete;

  void add(const Side& side, const std::shared_ptr<Transfer>& transfer);
  void note_group(std::shared_ptr<const GroupInfo> group);
  void begin_wait(const Transfer& transfer);
  void end_wait(Transfer& transfer);  ///< it completed
  /// It failed: returns what the ranks found out about it, "" when none answers in time.
  [[nodiscard]] std::string explain(const Transfer& transfer, const std::string& failure);

  /// What explain() asks, once; "": nothing.
  [[nodiscard]] std::string question() const;
  void answer(const std::string& text);
  /// "rank 3 waits since 2.00 s in all-reduce of …", "rank 3 runs outside any communication …".
  [[nodiscard]] std::string whereabouts() const;
  [[nodiscard]] FlightDump dump() const;

 private:
  using Clock = std::chrono::steady_clock;
  const int rank_;
  mutable std::mutex mutex_;
  std::condition_variable answered_;
  FlightRecorder recorder_;
  OpenScopes scopes_;
  std::vector<std::shared_ptr<const GroupInfo>> groups_;
  const Transfer* waits_for_ = nullptr;
  Clock::time_point since_ = Clock::now();  ///< it waits, or does not
  std::string question_, answer_;
  bool has_answer_ = false;
};

}  // namespace trellis::runtime
