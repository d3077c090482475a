#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "device/driver/session.h"

namespace trellis::device {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(MemoryAccountTest, PeakRemembersItsCategoriesAndPhase) {
  MemoryAccount memory(0, Bytes(1000));
  memory.allocate(100, BufferCategory::kParameter, {"init", -1, ""});
  memory.allocate(300, BufferCategory::kActivation, {"forward", 0, ""});
  memory.release(300, BufferCategory::kActivation);
  memory.allocate(50, BufferCategory::kGradient, {"backward", 0, ""});
  EXPECT_EQ(memory.current(), 150);
  EXPECT_EQ(memory.peak(), 400);
  EXPECT_EQ(memory.peak_phase(), "forward");
  EXPECT_EQ(memory.at_peak_by_category()[static_cast<std::size_t>(BufferCategory::kActivation)], 300);
  EXPECT_EQ(memory.at_peak_by_category()[static_cast<std::size_t>(BufferCategory::kGradient)], 0);
}

TEST(MemoryAccountTest, OutOfMemoryNamesEverythingAndChangesNothing) {
  MemoryAccount memory(3, Bytes(1000));
  memory.allocate(900, BufferCategory::kParameter, {"init", -1, ""});
  try {
    memory.allocate(200, BufferCategory::kActivation, {"forward", 2, "model.layers.1"});
    FAIL() << "must not fit";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 3, phase forward, micro-batch 2, layer model.layers.1"), HasSubstr("allocating 200 B"),
                                    HasSubstr("category activation"), HasSubstr("900 B (0.00 GiB) of the core's 1000 B"),
                                    HasSubstr("tensor_model_parallel_size"), HasSubstr("--instance trn1.")));
  }
  EXPECT_EQ(memory.current(), 900);
}

TEST(MemoryAccountTest, RecategorizeMovesBytes) {
  MemoryAccount memory(0, Bytes(1000));
  memory.allocate(10, BufferCategory::kTemporary, {});
  memory.recategorize(10, BufferCategory::kTemporary, BufferCategory::kGradient);
  memory.release(10, BufferCategory::kGradient);
  for (std::int64_t bytes : memory.current_by_category()) EXPECT_EQ(bytes, 0);
}

}  // namespace
}  // namespace trellis::device
