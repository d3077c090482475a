#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <source_location>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include "runtime/groups/world_options.h"

namespace c10d {
class ProcessGroup;
}

namespace trellis::runtime {

class DevicePlugin;
class ProcessLink;
class Rendezvous;  // in-process meeting point of the rank threads

/// A rank as its own thread sees it: rank, world, device and process.
class RankContext {
 public:
  /// `seat`: among the ranks that run in this process.
  RankContext(int rank, int seat, const WorldOptions& options, Rendezvous& rendezvous);
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int world_size() const { return options_.world_size; }
  /// The plugin's (trellis_device_plugin_t::device_of_rank), or the CPU.
  [[nodiscard]] c10::Device device() const { return device_; }
  [[nodiscard]] bool shape_only() const { return options_.shape_only; }
  [[nodiscard]] const DevicePlugin* plugin() const { return options_.plugin; }
  /// True if passes that repeat may be left to the plugin's repeat_period.
  [[nodiscard]] bool replays() const { return options_.replay; }

  /// A process group over `ranks` (global, in member order, this rank among them): with backend
  /// `neuron`, and for the device's tensors with WorldOptions::backend where it is set. Every
  /// member must call it, in the same order. `axis`: "tp", "pp", "dp", "world".
  c10::intrusive_ptr<c10d::ProcessGroup> new_group(const std::string& axis,
                                                   const std::vector<int>& ranks);
  /// Meets all ranks of the world; not part of the simulated timeline. `timeout`: how long another
  /// rank may work before it is reported as missing; zero: the world's. Throws Error(kHang).
  /// `where`: the line that reports of hangs name.
  void host_barrier(std::chrono::milliseconds timeout = {},
                    std::source_location where = std::source_location::current());
  /// The same for the ranks that run in this process.
  void process_barrier(std::chrono::milliseconds timeout = {},
                       std::source_location where = std::source_location::current());
  /// Ranks that run in this process, ascending.
  [[nodiscard]] const std::vector<int>& process_ranks() const;
  /// True if this is the first of them: it does what is done once per process.
  [[nodiscard]] bool leads_process() const { return process_ranks().front() == rank_; }
  /// The other processes; null: there are none.
  [[nodiscard]] ProcessLink* link() const { return options_.link; }
  /// A text that another process left under `name` (ProcessLink::leave_text); waits for it. Throws
  /// when the run fails meanwhile. REQUIRES: a link.
  [[nodiscard]] std::string take_text(const std::string& name);
  /// Collective among all ranks of the world: what the first rank of a process gives goes, piece
  /// after piece, to the first ranks of other processes, which get uint8 [bytes] of each process in
  /// `from`. CPU tensors that are contiguous; no one waits for those that take. Throws when the run
  /// fails meanwhile.
  [[nodiscard]] std::map<int, at::Tensor> exchange_bytes(
      const std::map<int, std::vector<at::Tensor>>& gives, const std::set<int>& from);
  /// A call that all ranks of the world make, in the same order, and leave together: when one
  /// throws in it, or has thrown, all do, with its text and rank. Its barriers and texts are waited
  /// for no longer; communications of groups have no place in it.
  void together(const std::function<void()>& body);
  /// Training step `step` begins: named in the texts about hangs and mismatches.
  void begin_step(std::int64_t step);
  /// True once another rank failed or the run was interrupted: leave at the next step border. The
  /// n-th call of every rank gives the same answer, so an interrupted run stops at the same border
  /// everywhere: ask once per step.
  [[nodiscard]] bool stop_requested() const;
  /// One answer for all ranks to a question whose answers may differ, such as what time it is: the
  /// n-th call of every rank returns what the first of them said. No one waits.
  [[nodiscard]] bool agree(bool said);
  /// Bytes that this rank has sent in finished communications, as their plans count them; 0 in
  /// shape-only mode.
  [[nodiscard]] std::int64_t bytes_sent() const;

 private:
  int rank_;
  const WorldOptions& options_;
  Rendezvous& rendezvous_;
  c10::Device device_;
};

/// Runs `body` once per rank that runs, each on its own thread with autograd multithreading off and
/// one intra-op thread. Returns when all ended, those of other processes too. When a rank throws,
/// the others are woken from their communications and end; the first error (lowest rank among the
/// causes) is rethrown. Throws Error(kHang) when all ended, but a send or a group has no other
/// side.
void run_ranks(const WorldOptions& options, const std::function<void(RankContext&)>& body);

}  // namespace trellis::runtime
