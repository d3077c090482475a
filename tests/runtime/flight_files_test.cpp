// Dumps of ranks, as PyTorch's own analyzer of flight records reads them.
#include "runtime/hangs/flight_files.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "base/error.h"
#include "runtime/ranks/world.h"

namespace trellis::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = 4;
const std::vector<int> kAll = {0, 1, 2, 3};

class FlightFiles : public ::testing::Test {
 protected:
  FlightFiles()
      : folder_(std::filesystem::temp_directory_path() /
                ("flight_files_test_" + std::to_string(getpid()))) {
    std::filesystem::remove_all(folder_);
  }
  ~FlightFiles() override { std::filesystem::remove_all(folder_); }

  /// The analyzer's report on a world that fails so.
  std::string analysis(const std::function<void(RankContext&)>& body) {
    WorldOptions options;
    options.world_size = kRanks;
    options.dump = [this](const auto& dumps) {
      return write_flight_files(folder_ / "rank_", dumps);
    };
    try {
      run_ranks(options, body);
      ADD_FAILURE() << "nothing failed";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kHang);
      EXPECT_THAT(error.what(), HasSubstr("flight recorder of ranks 0 to 3: " + folder_.string()));
    }
    const std::string command = std::string(TRELLIS_SOURCE_DIR) +
                                "/.venv/bin/python -m torch.distributed.flight_recorder.fr_trace " +
                                folder_.string() + " 2>&1";
    std::string text;
    std::FILE* pipe = popen(command.c_str(), "r");
    std::array<char, 1 << 16> buffer{};
    while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe))
      text.append(buffer.data(), count);
    EXPECT_EQ(pclose(pipe), 0) << text;
    return text;
  }

 private:
  std::filesystem::path folder_;
};

/// One of each kind, all of which fit.
void communicate(RankContext& context, c10d::ProcessGroup& group) {
  const int rank = context.rank();
  std::vector<at::Tensor> one{at::ones({4})};
  group.allreduce(one)->wait();
  group.broadcast(one)->wait();
  at::Tensor gathered = at::empty({4 * kRanks}), part = at::empty({4});
  group.all_gather_single(gathered, one[0])->wait();
  group.reduce_scatter_single(part, gathered)->wait();
  // Rank r gives r + 1 elements to each.
  at::Tensor given = at::ones({kRanks * (rank + 1)}), got = at::empty({1 + 2 + 3 + 4});
  std::vector<std::int64_t> out{1, 2, 3, 4}, in(kRanks, rank + 1);
  group.all_to_all_single(got, given, out, in)->wait();
  if (rank % 2 == 0) {
    group.send(one, rank + 1, 0)->wait();
  } else {
    group.recv(one, rank - 1, 0)->wait();
  }
}

TEST_F(FlightFiles, TheAnalyzerPairsEveryOperationAndNamesTheMissingRank) {
  const std::string text = analysis([](RankContext& context) {
    auto group = context.new_group("dp", kAll);
    for (int step = 1; step <= 3; ++step) {
      context.begin_step(step);
      communicate(context, *group);
    }
    if (context.rank() != 2) group->barrier()->wait();
  });
  EXPECT_THAT(text, AllOf(HasSubstr("Not all ranks joining collective, sequence number: 15"),
                          HasSubstr("missing ranks: {2}"), HasSubstr("gloo:barrier"),
                          Not(HasSubstr("has errors")), Not(HasSubstr("mismatch"))));
}

TEST_F(FlightFiles, TheAnalyzerNamesAnotherSizeAndAnotherOperation) {
  const std::string sizes = analysis([](RankContext& context) {
    auto group = context.new_group("dp", kAll);
    communicate(context, *group);
    group->barrier()->wait();
    std::vector<at::Tensor> tensor{at::ones({context.rank() == 3 ? 5 : 4})};
    group->allreduce(tensor)->wait();
  });
  // It takes the first file that it finds for right, and the others for the culprits.
  EXPECT_THAT(sizes,
              AllOf(HasSubstr("Collective sequence number: 6 has errors"),
                    HasSubstr("SIZE_OR_SYNTAX_MISMATCH"), HasSubstr("[[4]]"), HasSubstr("[[5]]")));
  const std::string operations = analysis([](RankContext& context) {
    auto group = context.new_group("dp", kAll);
    group->barrier()->wait();
    std::vector<at::Tensor> tensor{at::ones({4})};
    (context.rank() == 3 ? group->broadcast(tensor) : group->allreduce(tensor))->wait();
  });
  EXPECT_THAT(operations, AllOf(HasSubstr("Collective sequence number: 1 has errors"),
                                HasSubstr("COLLECTIVE_TYPE_MISMATCH"), HasSubstr("'broadcast'"),
                                HasSubstr("'all_reduce'")));
}

TEST_F(FlightFiles, AFolderThatCannotBeWrittenIsNamed) {
  EXPECT_EQ(write_flight_files("/proc/nothing", {}), "");
  EXPECT_THAT(write_flight_files("/proc/nothing", {FlightDump{}}),
              HasSubstr("flight recorder: not written: "));
}

}  // namespace
}  // namespace trellis::runtime
