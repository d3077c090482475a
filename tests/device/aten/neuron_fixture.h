#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>
#include <gtest/gtest.h>

#include "device/aten/state/observer.h"
#include "device/aten/state/rank_state.h"
#include "device/driver/record/rank_recorder_impl.h"

/// A configured device for tests: recorders without a session. Devices 0 … kMaterialised-1 hold
/// data, device kShapeOnly does not.
namespace trellis::device::testing {

inline constexpr int kMaterialised = 8;
inline constexpr int kShapeOnly = 8;
inline constexpr std::int64_t kHbm = std::int64_t{1} << 30;

inline at::Device neuron(int index) {
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

inline RankRecorder& recorder(int rank) {
  return rank_state(static_cast<c10::DeviceIndex>(rank)).recorder();
}

/// One record in words: "aten::mm(#3[2,4] #4[4,5]) -> #5[2,5]"; buffers are numbered in order of
/// appearance.
struct Line {
  std::string op, scalars;
  std::vector<std::string> inputs, outputs;
  Scope scope;
};

inline std::string shape_text(const TensorView& view) {
  return c10::str(c10::IntArrayRef(view.sizes), "/", c10::IntArrayRef(view.strides), "+",
                  view.offset, ":", static_cast<int>(view.dtype));
}

/// The open graph of a rank's recorder.
inline std::vector<Line> recorded(int rank) {
  RankRecorder& source = recorder(rank);
  const RankRecorder::Impl& stream = source.impl();
  InternTable& table = source.interned();
  std::unordered_map<std::uint64_t, std::size_t> buffers;
  std::vector<Line> lines;
  for (const OpRecord& op : stream.ops) {
    Line line{table.text(op.schema), table.text(op.scalars), {}, {}, table.scope(op.scope)};
    for (std::uint32_t i = 0; i < std::uint32_t{op.num_inputs} + op.num_outputs; ++i) {
      const Operand operand = stream.operands[op.first_operand + i];
      const std::size_t number = buffers.try_emplace(operand.buffer, buffers.size()).first->second;
      (i < op.num_inputs ? line.inputs : line.outputs)
          .push_back(c10::str("#", number, "{", stream.bytes_of(op.first_operand + i, table), "}",
                              shape_text(table.view(operand.view))));
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

inline std::vector<std::string> recorded_ops(int rank) {
  std::vector<std::string> ops;
  for (const Line& line : recorded(rank)) ops.push_back(line.op);
  return ops;
}

inline std::string to_text(const std::vector<Line>& lines) {
  std::string text;
  for (const Line& line : lines) {
    text +=
        c10::str(line.scope.phase, "|", line.scope.layer, "| ", line.op, " ", line.scalars, " (",
                 c10::Join(" ", line.inputs), ") -> ", c10::Join(" ", line.outputs), "\n");
  }
  return text;
}

/// Configures the devices once per process and binds the test's thread to rank 0.
class NeuronTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (device_count() == 0) {
      std::vector<DeviceRank> ranks;
      for (int rank = 0; rank <= kShapeOnly; ++rank) {
        ranks.push_back({new RankRecorder(rank, rank, Bytes(kHbm), true), rank == kShapeOnly});
        ranks.back().recorder->phases_are_announced();  // tests look into the open graph and end it
                                                        // themselves
      }
      install_scope_observer();
      configure_devices(ranks);
    }
    at::set_num_threads(1);
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
  void SetUp() override { use(0); }
  /// Binds this thread to `rank` and forgets what it recorded.
  static void use(int rank) {
    bind_this_thread(rank);
    recorder(rank).cut("test");
  }
};

inline void expect_same_bits(const at::Tensor& expected, const at::Tensor& got,
                             const std::string& what) {
  ASSERT_EQ(expected.defined(), got.defined()) << what;
  if (!expected.defined()) return;
  ASSERT_EQ(expected.scalar_type(), got.scalar_type()) << what;
  ASSERT_EQ(expected.sizes(), got.sizes()) << what;
  EXPECT_EQ(expected.strides(), got.strides()) << what;
  const at::Tensor host = got.cpu();
  EXPECT_TRUE(at::allclose(expected.to(at::kDouble), host.to(at::kDouble), 0, 0, true))
      << what << "\nexpected " << expected << "\ngot " << host;
}

}  // namespace trellis::device::testing
