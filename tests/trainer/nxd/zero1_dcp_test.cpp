// NxD's use_zero1_dcp: states of ZeRO-1 as one folder of torch.distributed.checkpoint.
#include <filesystem>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"
#include "tests/trainer/nxd/user_training.h"
#include "trainer/files/checkpoint/containers/dcp.h"
#include "trainer/files/checkpoint/storage/open_storage.h"

namespace trellis::trainer::zero1_dcp_test {
namespace {

using namespace testing_support;
using testing::ElementsAre;
namespace fs = std::filesystem;

/// Names in the folder of DCP, and how many rows each of their chunks has.
std::map<std::string, std::vector<std::int64_t>> dcp_rows(const fs::path& folder) {
  const checkpoint::DcpReader reader(checkpoint::open_storage(folder.string()), "");
  std::map<std::string, std::vector<std::int64_t>> rows;
  for (const auto& [name, tensor] : reader.metadata().tensors) {
    for (const checkpoint::DcpChunk& chunk : tensor.chunks)
      rows[name].push_back(chunk.sizes.empty() ? 1 : chunk.sizes.front());
  }
  return rows;
}

TEST(Zero1Dcp, StatesMoveToEveryDataParallelSize) {
  const TemporaryDirectory folder;
  std::vector<double> whole;
  const auto train = [&](const Layout& layout, const std::string& tag) {
    run(layout, folder.path(), [&](Training& training, NxDCheckpoints& saved) {
      for (int step = 0; step < 5; ++step) {
        if (step == 3)
          saved.save_checkpoint(training.rank, {.tag = tag,
                                                .model = training.model.get(),
                                                .optimizer = training.optimizer.get(),
                                                .async_save = true,
                                                .use_zero1_dcp = true});
        const double loss = training.step();
        if (training.rank.rank() == 0) whole.push_back(loss);
      }
      saved.finalize_checkpoint(training.rank);
    });
  };
  const auto goes_on = [&](const Layout& layout, const std::string& tag) {
    run(layout, folder.path(), [&](Training& training, NxDCheckpoints& saved) {
      training.spoil();
      saved.load_checkpoint(training.rank, {.tag = tag,
                                            .model = training.model.get(),
                                            .optimizer = training.optimizer.get(),
                                            .use_zero1_dcp = true});
      EXPECT_EQ(training.optimizer->steps(), 3);
      for (std::size_t step = 3; step < 5; ++step) EXPECT_NEAR(training.step(), whole[step], 1e-12);
    });
  };
  train({.dp = 4}, "wide");
  EXPECT_THAT(
      tags_in(folder.path() / "wide/optim"),
      ElementsAre(".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp", "__3_0.distcp"));
  auto rows = dcp_rows(folder.path() / "wide/optim");
  EXPECT_THAT(rows["base_state.block.0.up.weight.exp_avg_sq"], ElementsAre(4, 4, 4, 4));
  EXPECT_THAT(rows["base_state.block.0.up.weight.step"], ElementsAre(1));
  for (const Layout& layout : {Layout{.dp = 2}, Layout{.dp = 4}, Layout{}, Layout{.tp = 2, .dp = 2},
                               Layout{.dp = 2, .zero1 = false}})
    goes_on(layout, "wide");
  whole.clear();
  train({.tp = 2, .pp = 2, .dp = 2}, "deep");
  rows = dcp_rows(folder.path() / "deep/optim");
  EXPECT_THAT(rows["base_state.block.0.up.weight.exp_avg|pp-0000|tp-0001"], ElementsAre(4, 4));
  EXPECT_THAT(rows["base_state.block.3.norm.bias.exp_avg|pp-0001|tp-0000"], ElementsAre(4, 4));
  EXPECT_THAT(rows["base_state.block.3.norm.bias.step"], ElementsAre(1));
  for (const Layout& layout : {Layout{.tp = 2, .pp = 2}, Layout{.pp = 4, .dp = 2}})
    goes_on(layout, "deep");
}

TEST(Zero1Dcp, MastersAreInItToo) {
  const TemporaryDirectory folder;
  const Layout layout{.tp = 2, .dp = 2, .dtype = at::kBFloat16};
  run(layout, folder.path(), [&](Training& training, NxDCheckpoints& saved) {
    training.step();
    saved.save_checkpoint(training.rank, {.model = training.model.get(),
                                          .optimizer = training.optimizer.get(),
                                          .async_save = true,
                                          .use_zero1_dcp = true});
    const double loss = training.step();
    training.spoil();
    saved.load_checkpoint(training.rank,
                          {.model = training.model.get(), .optimizer = training.optimizer.get()});
    EXPECT_EQ(training.step(), loss);
  });
  EXPECT_TRUE(dcp_rows(folder.path() / "step_1/optim")
                  .contains("sharded_master_weights.block.0.up.weight|tp-0001"));
}

}  // namespace
}  // namespace trellis::trainer::zero1_dcp_test
