#pragma once

#include <string_view>

#include <c10/util/SmallVector.h>

#include "device/aten/dispatch/as_cpu_tensors.h"

/// Records executed operators in the rank's stream of OpRecords.
namespace trellis::device {

/// The operands of one record, collected before it is written.
class Operands {
 public:
  explicit Operands(RankState& owner) : owner_(owner) {}
  void add_input(const c10::TensorImpl& tensor) { add(tensor, inputs_, input_bytes_); }
  void add_output(const c10::TensorImpl& tensor) { add(tensor, outputs_, output_bytes_); }
  [[nodiscard]] bool empty() const { return inputs_.empty() && outputs_.empty(); }
  void record(std::string_view schema, std::string_view scalars);
  void record(RankRecorder::OpTexts texts);
  std::int64_t comm_start(const CommRequest& request);

 private:
  using List = c10::SmallVector<Operand, 18>;
  using Sizes = c10::SmallVector<std::int64_t, 20>;
  void add(const c10::TensorImpl& tensor, List& list, Sizes& sizes);
  [[nodiscard]] std::span<const std::int64_t> bytes();

  RankState& owner_;
  List inputs_, outputs_;
  Sizes input_bytes_, output_bytes_;
};

/// True when what runs now on `owner`'s device is to be recorded. A thread that is not bound to the
/// rank runs operators without recording them; that is reported once per rank.
[[nodiscard]] bool should_record(RankState& owner, std::string_view op);

/// " other=0.5" for each host number that LibTorch wrapped into a tensor. REQUIRES: the stack as
/// the caller filled it.
void append_host_numbers(const OpInfo& info, const torch::jit::Stack& stack, std::string& text);
/// The text of an operator's non-tensor arguments, "dim=[-1] keepdim=1". `stack` ends with the
/// operator's arguments.
void append_scalars(const OpInfo& info, const torch::jit::Stack& stack, std::string& text);

/// Records a finished call. REQUIRES: relabeling.leave() was called; `stack` ends with the
/// operator's results.
void record_call(const OpInfo& info, const Relabeling& relabeling, const torch::jit::Stack& stack,
                 std::string_view scalars);

/// The host has read the device's memory: its clock waited for the current stream.
void host_reads(RankState& owner);

/// Records an operation of a hand-written kernel; `output` or `input` may be undefined (the host's
/// side of a copy).
void record_copy(RankState& owner, std::string_view schema, const at::Tensor& input,
                 const at::Tensor& output, std::string_view scalars);

}  // namespace trellis::device
