#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/custom_class.h>

#include "runtime/hangs/crash.h"
#include "runtime/hangs/dump_once.h"
#include "runtime/hangs/hang_watch.h"
#include "runtime/links/process_link.h"
#include "runtime/ranks/world.h"
#include "runtime/rendezvous/rendezvous.h"

namespace trellis::runtime {

/// This process as a rank of a Python program whose ranks are processes. They compare their sides
/// and move their bytes as the trainer's processes do, and explain hangs as they do. Made on the
/// rank's thread; other threads may communicate too.
class RankProcess : public torch::CustomClassHolder {
 public:
  using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

  /// `carrier`: its store is where the processes meet, its members are `world`. `records`: where
  /// files of ranks that failed go, without the rank; the first rank's counts. `device`: index of
  /// the rank's. `earlier`: worlds that the program has made in the same store. Waits for all.
  RankProcess(const std::string& library, const GroupPtr& carrier,
              const std::vector<std::int64_t>& world, std::int64_t device, std::int64_t earlier,
              std::int64_t timeout_ms, const std::string& records);
  ~RankProcess() override;

  /// Meets the group's other members. `number`: of the groups that the program has made; `place`:
  /// the line that makes it.
  GroupPtr group(const std::string& axis, const std::vector<std::int64_t>& ranks,
                 std::int64_t timeout_ms, std::int64_t number, const std::string& place);
  /// The program failed: the others learn why.
  void fail(const std::string& text);
  /// The program communicates no more. Waits for the others for `patience_ms`. Throws what only
  /// some ranks did, when `number` and `place` of the last group are given and nothing failed.
  /// Returns a line for the user: what could not be compared; "": nothing.
  std::string leave(std::int64_t patience_ms, std::int64_t number, const std::string& place);
  /// True if another rank asks where this one is. Call it regularly. `single_thread`: no thread of
  /// the program but the rank's may communicate.
  [[nodiscard]] bool is_asked(bool single_thread);
  /// Gives the answer of a thread of Python: ", at train.py:3 in body".
  void answer(const std::string& place);

 private:
  [[nodiscard]] std::string place();

  WorldOptions options_;
  int rank_ = 0;
  std::unique_ptr<ProcessLink> link_;
  std::shared_ptr<Rendezvous> rendezvous_;
  std::unique_ptr<RankContext> context_;
  FlightDumpWriter write_;
  std::optional<DumpOnce> dump_;
  SignalStack signal_stack_;
  std::optional<CrashHandler> crashes_;
  std::optional<HangWatch> watch_;  ///< after what it uses
  bool has_left_ = false;

  mutable std::mutex mutex_;  ///< guards what follows
  std::condition_variable answered_;
  bool is_asked_ = false;
  std::string place_;
};

/// The files of ranks that failed: PREFIX + rank, and a trace next to them. Returns what a user is
/// to read about them.
[[nodiscard]] std::string write_records(const std::filesystem::path& prefix,
                                        const std::vector<FlightDump>& dumps,
                                        std::int64_t origin_ns, std::uint32_t part);

}  // namespace trellis::runtime
