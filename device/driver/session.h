#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "device/compiler/graph.h"
#include "device/compiler/op_record.h"
#include "sim/config/system_config.h"
#include "sim/sim.h"

/// Where recorded operations become graphs, programs and simulated time. Plain C++ (no LibTorch): device/aten feeds it.
namespace trellis::device {

struct SessionOptions {
  std::string instance = "trn1.32xlarge";
  int nodes = 1;
  int world_size = 1;
  bool shape_only = false;
  bool record = true;  ///< off: operations run, nothing is recorded or simulated
};

/// A communication as the trainer's backend announces it.
struct CommRequest {
  sim::CollectiveKind kind = sim::CollectiveKind::kAllReduce;
  std::string axis;
  std::vector<int> ranks;  ///< kSendRecv: {sender, receiver}
  std::uint64_t sequence = 0;
  std::int64_t elements = 0;
  DType dtype = DType::kFp32;
};

/// One rank's memory on the modelled HBM. Counts what the caching allocator would hold; the thread of the rank is its only user.
class MemoryAccount {
 public:
  MemoryAccount(int rank, Bytes capacity) : rank_(rank), capacity_(capacity) {}
  /// Charges `bytes` (already rounded to the allocator's size class). Throws Error (exit 3: rank, phase, category, bytes, capacity, what to change).
  void allocate(std::int64_t bytes, BufferCategory category, const Scope& scope);
  void release(std::int64_t bytes, BufferCategory category);
  void recategorize(std::int64_t bytes, BufferCategory from, BufferCategory to);
  [[nodiscard]] std::int64_t current() const { return current_; }
  [[nodiscard]] std::int64_t peak() const { return peak_; }
  [[nodiscard]] const std::array<std::int64_t, kNumBufferCategories>& current_by_category() const { return by_category_; }
  [[nodiscard]] const std::array<std::int64_t, kNumBufferCategories>& at_peak_by_category() const { return at_peak_; }
  [[nodiscard]] const std::string& peak_phase() const { return peak_phase_; }
  [[nodiscard]] Bytes capacity() const { return capacity_; }
  void reset_peak();

 private:
  int rank_;
  Bytes capacity_;
  std::int64_t current_ = 0, peak_ = 0;
  std::array<std::int64_t, kNumBufferCategories> by_category_{}, at_peak_{};
  std::string peak_phase_;
};

/// One rank's stream of operations. Used only by the thread that is bound to the rank.
class RankRecorder {
 public:
  RankRecorder(int rank, Bytes hbm, bool record);

  // scopes: RECORD_FUNCTION user scopes, as text "phase=forward", "microbatch=3", "layer=model.layers.0"; others are ignored
  void push_scope(std::string_view text);
  void pop_scope(std::string_view text);
  /// Scope of a forward operation by its autograd sequence number: so a backward operation is charged to its layer.
  void set_backward_sequence(std::int64_t sequence);  ///< −1: none
  void note_sequence(std::int64_t next_sequence);     ///< at layer borders in forward

  [[nodiscard]] std::uint64_t new_buffer();  ///< next buffer id
  /// Called when the storage of a buffer is released; a buffer released before its graph ends is a temporary of that graph.
  void release_buffer(std::uint64_t buffer);
  [[nodiscard]] bool recording() const { return record_; }
  InternTable& interned() { return interned_; }
  /// `bytes[i]`: size of operand i's whole buffer.
  void record(std::string_view schema, std::string_view scalars, std::span<const Operand> inputs, std::span<const Operand> outputs,
              std::span<const std::int64_t> bytes);
  std::int64_t comm_start(const CommRequest& request, std::span<const Operand> inputs, std::span<const Operand> outputs,
                          std::span<const std::int64_t> bytes);
  void comm_wait(std::int64_t handle);
  void cut(std::string_view reason);  ///< ends the current graph

  MemoryAccount& memory() { return memory_; }
  [[nodiscard]] const Scope& current_scope() const { return scope_; }
  [[nodiscard]] int rank() const { return rank_; }

  struct Impl;
  [[nodiscard]] Impl& impl() { return *impl_; }
  ~RankRecorder();

 private:
  int rank_;
  bool record_;
  InternTable interned_;
  Scope scope_;
  MemoryAccount memory_;
  std::unique_ptr<Impl> impl_;
};

/// The process-wide emulator: one recorder per rank, the program cache and the simulator.
class Session {
 public:
  explicit Session(const SessionOptions& options);
  ~Session();
  [[nodiscard]] const SessionOptions& options() const { return options_; }
  [[nodiscard]] const sim::SystemConfig& system() const { return system_; }
  RankRecorder& rank(int rank);
  void end_step(int rank, std::int64_t step);
  /// Compiles what is new, times it, runs the cluster; schema trellis.step_report/1.
  nlohmann::json simulate_step(std::int64_t step);
  void write_trace(const std::filesystem::path& path, const std::string& format);
  nlohmann::json memory_report();

 private:
  struct Impl;
  SessionOptions options_;
  sim::SystemConfig system_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trellis::device
