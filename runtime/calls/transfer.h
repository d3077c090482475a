#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/calls/comm_call.h"
#include "runtime/calls/movement.h"

namespace trellis::runtime {

/// A group as the ranks of a process know it.
struct GroupInfo {
  std::string axis;
  std::vector<int> ranks;  ///< global, in member order
  int instance = 0;        ///< n-th group with this axis and these ranks
  int running = 0;         ///< members that run in this world
  std::string label;       ///< "dp [0, 2, 4, 6]"; "dp [0, 2, 4, 6] (instance 1)"
};

/// One rank's side of a communication: what it believes, where its bytes are.
struct Side {
  CommCall call;
  MemberBuffers buffers;                    ///< empty in shape-only mode
  std::vector<std::int64_t> input_splits;   ///< all-to-all: elements to each member
  std::vector<std::int64_t> output_splits;  ///< all-to-all: elements from each member
  std::string place;                        ///< where it was called, as describe(CallPlace)
  std::vector<at::Tensor> keep_alive;
  /// {strided tensor, its contiguous copy}: written back when the bytes have arrived. Both on the
  /// CPU.
  std::vector<std::pair<at::Tensor, at::Tensor>> write_back;
};

/// Copies what arrived for strided tensors into them.
void write_back(const Side& side);

/// A communication under way: what the flight recorder remembers and what Work waits for.
struct Transfer {
  virtual ~Transfer() = default;
  std::shared_ptr<const GroupInfo> group;
  std::uint64_t sequence = 0;
  std::vector<int> waiting;  ///< global ranks blocked in wait; guarded by the world's mutex
  std::exception_ptr error;  ///< set before `done`
  std::atomic<bool> done{false};
  std::int64_t ended_ns = 0;  ///< host_time_ns() of its completion; 0: not complete, or it failed
  /// Global ranks whose arrival it still needs; REQUIRES the world's mutex.
  [[nodiscard]] virtual std::vector<int> missing() const = 0;
  [[nodiscard]] virtual std::vector<int> arrived() const = 0;
  /// True if bytes are being moved and every awake member may take a share; REQUIRES the world's
  /// mutex.
  [[nodiscard]] virtual bool has_work() const { return false; }
  /// Lets go of tensors and buffers: the flight recorder keeps transfers for long.
  virtual void release() = 0;
};

/// The members of a group meet here for one collective.
struct Exchange final : Transfer {
  explicit Exchange(std::shared_ptr<const GroupInfo> info, std::uint64_t n)
      : sides(info->ranks.size()) {
    group = std::move(info);
    sequence = n;
  }
  [[nodiscard]] std::vector<int> missing() const override { return members_where(false); }
  [[nodiscard]] std::vector<int> arrived() const override { return members_where(true); }
  [[nodiscard]] bool has_work() const override { return next_part < parts; }
  void release() override;
  /// Moves parts until none is left. True for the one call that did the last of them; only then may
  /// anything be released.
  bool move_parts();

  std::vector<std::optional<Side>> sides;  ///< by member; none once it was released
  int arrivals = 0;
  // The bytes are moved in parts, by whichever members are awake; set when all have arrived.
  CommCall call;  ///< what all members agreed on
  std::shared_ptr<const Movement> movement;
  std::vector<const MemberBuffers*> buffers;
  std::int64_t length = 0;
  std::int64_t parts = 0;
  std::atomic<std::int64_t> next_part{0};
  std::atomic<std::int64_t> parts_done{0};

 private:
  [[nodiscard]] std::vector<int> members_where(bool present) const {
    std::vector<int> result;
    for (std::size_t m = 0; m < sides.size(); ++m) {
      if (sides[m].has_value() == present) result.push_back(group->ranks[m]);
    }
    return result;
  }
};

/// A message from one rank to another. The sender leaves a copy and goes on.
struct Message final : Transfer {
  [[nodiscard]] std::vector<int> missing() const override {
    return sent ? std::vector<int>{} : std::vector<int>{sender};
  }
  [[nodiscard]] std::vector<int> arrived() const override {
    return sent ? std::vector<int>{sender} : std::vector<int>{receiver};
  }
  void release() override;

  int sender = 0;  ///< global ranks
  int receiver = 0;
  std::optional<CommCall> sent;
  std::string sent_at;         ///< as Side::place
  std::optional<Side> posted;  ///< by the receiver
  std::vector<std::byte> content;
};

}  // namespace trellis::runtime
