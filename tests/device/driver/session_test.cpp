#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "device/driver/session.h"

namespace trellis::device {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SessionTest : public ::testing::Test {
 protected:
  Session session{SessionOptions{.instance = "trn1.32xlarge", .world_size = 2}};

  static Operand tensor(RankRecorder& rank, std::uint64_t buffer, std::vector<std::int64_t> sizes) {
    const std::vector<std::int64_t> strides{sizes[1], 1};
    return {buffer, rank.interned().view({sizes, strides, 0, DType::kBf16})};
  }

  /// out = a · b, then all-reduce(out) over both ranks.
  void forward(int r, std::string_view schema, std::uint64_t sequence) {
    forward_in(session, r, schema, sequence);
  }

  static void forward_in(Session& session, int r, std::string_view schema, std::uint64_t sequence) {
    RankRecorder& rank = session.rank(r);
    const std::int64_t n = 256, bytes = n * n * 2;
    const std::array<Operand, 2> in{tensor(rank, rank.new_buffer(), {n, n}),
                                    tensor(rank, rank.new_buffer(), {n, n})};
    rank.cut("start");
    rank.push_scope("phase=forward");
    rank.push_scope("microbatch=0");
    rank.push_scope("layer=model.layers.0");
    const std::array<Operand, 1> out{tensor(rank, rank.new_buffer(), {n, n})};
    const std::array<std::int64_t, 3> sizes{bytes, bytes, bytes};
    rank.record(schema, "", in, out, sizes);
    const std::int64_t handle = rank.comm_start(
        {sim::CollectiveKind::kAllReduce, "tp", {0, 1}, sequence, n * n, DType::kBf16}, out, out,
        std::array{bytes, bytes});
    rank.comm_wait(handle);
    rank.pop_scope("layer=model.layers.0");
    rank.pop_scope("microbatch=0");
    rank.pop_scope("phase=forward");
    session.end_step(r, 1);
  }
};

TEST_F(SessionTest, ATraceHasTheCountersThatAProgramAnnounces) {
  const auto announce = [](RankRecorder& rank, std::string_view text) {
    rank.push_scope(text);
    rank.pop_scope(text);
  };
  for (int r = 0; r < 2; ++r) {
    RankRecorder& rank = session.rank(r);
    announce(rank, "counter=expert 3=40");  // before a step's operations: it counts nothing
    rank.push_scope("phase=forward");
    for (const char* text : {"counter=expert 3=70", "counter=broken", "counter=expert 4=9"})
      announce(rank, text);
    const std::array<Operand, 2> in{tensor(rank, rank.new_buffer(), {256, 256}),
                                    tensor(rank, rank.new_buffer(), {256, 256})};
    const std::array<Operand, 1> out{tensor(rank, rank.new_buffer(), {256, 256})};
    constexpr std::int64_t kBytes = 256 * 256 * 2;
    rank.record("aten::mm", "", in, out, std::array{kBytes, kBytes, kBytes});
    rank.pop_scope("phase=forward");
    session.end_step(r, 1);
  }
  (void)session.simulate_step(1);
  const auto path = std::filesystem::temp_directory_path() / "trellis_session_test_counters.txt";
  session.write_trace(path, "text");
  std::ifstream file(path);
  const std::string trace{std::istreambuf_iterator<char>(file), {}};
  std::filesystem::remove(path);
  EXPECT_THAT(trace,
              AllOf(HasSubstr("/\"expert 3\" 70 tokens"), HasSubstr("/\"expert 4\" 9 tokens")));
  EXPECT_THAT(trace, ::testing::Not(AnyOf(HasSubstr("\"expert 3\" 40"), HasSubstr("broken"))));
}

TEST_F(SessionTest, AStepHasATimeABreakdownThatAddsUpAndFullCoverage) {
  forward(0, "aten::mm", 0);
  forward(1, "aten::mm", 0);
  const nlohmann::json report = session.simulate_step(1);
  EXPECT_GT(report.at("step_time_ps").get<std::int64_t>(), 0);
  EXPECT_EQ(report.at("programs").size(), 1u) << "equal graphs of two ranks are one program";
  EXPECT_EQ(report.at("coverage").at("lowered_flops_share"), 1.0);
  for (const auto& row : report.at("breakdown")) {
    EXPECT_EQ(row.at("total_ps"), report.at("step_time_ps"));
    EXPECT_GT(row.at("matmul_ps").get<std::int64_t>(), 0);
    EXPECT_GT(row.at("exposed_tp_ps").get<std::int64_t>(), 0);
  }
  std::int64_t sum = 0;
  std::set<std::pair<std::string, std::string>> found;
  for (const auto& row : report.at("attribution").at("rows")) {
    sum += row.at("time_ps").get<std::int64_t>();
    found.emplace(row.at("operator"), row.at("kind"));
    if (row.at("operator") == "mm") {
      EXPECT_EQ(row.at("component"), "model.layers.*");
    }
  }
  EXPECT_EQ(sum, report.at("step_time_ps"));
  EXPECT_TRUE(found.contains({"all_reduce", "comm_tp"}));
  EXPECT_TRUE(found.contains({"mm", "compute"}) || found.contains({"mm", "memory"}));
  EXPECT_TRUE(found.contains({"launch", "launch"}));
}

class SessionWarnings : public SessionTest {
 protected:
  void step(std::string_view of_rank_0, std::string_view of_rank_1) {
    ++step_;
    forward(0, of_rank_0, step_);
    forward(1, of_rank_1, step_);
    (void)session.simulate_step(static_cast<std::int64_t>(step_));
  }
  std::vector<std::string> warnings;

 private:
  std::uint64_t step_ = 0;
  LogTap tap_{[this](LogLevel level, std::string_view text) {
    if (level == LogLevel::kWarning) warnings.emplace_back(text);
  }};
};

TEST_F(SessionWarnings, RanksThatRunOtherOperationsAreSaidOnce) {
  for (int times = 0; times < 2; ++times) step("aten::mm", "aten::add.Tensor");
  EXPECT_THAT(warnings, ElementsAre(AllOf(HasSubstr("rank 1 runs add.Tensor"),
                                          HasSubstr("operation 1 of \"forward\" in "
                                                    "model.layers.0"))));
}

TEST_F(SessionWarnings, AStepOfGraphsThatAreKnownIsComparedToo) {
  step("aten::mm", "aten::mm");
  step("aten::add.Tensor", "aten::add.Tensor");
  EXPECT_THAT(warnings, ElementsAre());
  step("aten::mm", "aten::add.Tensor");
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("rank 1 runs add.Tensor")));
}

TEST_F(SessionTest, EqualStepsGiveEqualReportsAndTraces) {
  const auto trace = [this] {
    const auto path = std::filesystem::temp_directory_path() / "trellis_session_test_trace.txt";
    session.write_trace(path, "text");
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    std::filesystem::remove(path);
    return text.str();
  };
  std::string reports[2], traces[2];
  for (std::uint64_t step = 0; step < 2; ++step) {
    forward(0, "aten::mm", step);
    forward(1, "aten::mm", step);
    nlohmann::json report = session.simulate_step(1);
    reports[step] = report.dump();
    traces[step] = trace();
  }
  EXPECT_EQ(reports[0], reports[1]);
  EXPECT_EQ(traces[0], traces[1]);
  EXPECT_THAT(traces[0],
              AllOf(HasSubstr("all_reduce"), HasSubstr("model.layers.0"), HasSubstr("bytes")));
}

TEST_F(SessionTest, AStepTakenFromAnotherSessionIsAsIfItHadRunHere) {
  // Other graphs in the second step, then known ones. One session simulates: SystemC's rule.
  const std::array<const char*, 3> schemas = {"aten::mm", "aten::add", "aten::mm"};
  std::vector<nlohmann::json> expected;
  for (std::uint64_t step = 0; step < schemas.size(); ++step) {
    for (const int rank : {0, 1}) forward(rank, schemas[step], step);
    expected.push_back(session.simulate_step(1));
  }
  session.forget_steps();
  Session there(session.options());
  for (std::uint64_t step = 0; step < schemas.size(); ++step) {
    forward(0, schemas[step], step);
    forward_in(there, 1, schemas[step], step);
    session.take_step(there.give_step({1}));
    EXPECT_EQ(session.simulate_step(1), expected[step]);
  }
  forward_in(there, 1, "aten::mm", 3);
  EXPECT_NE(session.portability_report(1), there.portability_report(1));
  session.take_accounts(there.give_accounts({1}));
  EXPECT_EQ(session.portability_report(1), there.portability_report(1));
  EXPECT_EQ(session.memory_report().at("ranks").at(1), there.memory_report().at("ranks").at(1));
}

TEST_F(SessionTest, GraphsAreGivenOnce) {
  forward(1, "aten::mm", 0);
  const std::size_t first = session.give_step({1}).size();
  forward(1, "aten::mm", 1);
  EXPECT_LT(session.give_step({1}).size(), first / 2);
}

TEST_F(SessionTest, DamagedStepsAreRefused) {
  forward(1, "aten::mm", 0);
  const std::string step = session.give_step({1}), accounts = session.give_accounts({1});
  Session other(session.options());
  for (std::size_t size = 0; size < step.size(); ++size)
    EXPECT_THROW(other.take_step(step.substr(0, size)), Error) << size;
  for (std::size_t size = 0; size < accounts.size(); ++size)
    EXPECT_THROW(other.take_accounts(accounts.substr(0, size)), Error) << size;
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string flipped = step;
    flipped[random() % flipped.size()] ^= static_cast<char>(1 << random() % 8);
    try {
      other.take_step(flipped);
    } catch (const std::exception&) {}  // named, or another figure; never a wild access
  }
}

TEST_F(SessionTest, AnOperatorWithoutLoweringIsNamedWithShapesAndPlace) {
  forward(0, "aten::linalg_svd", 0);
  forward(1, "aten::linalg_svd", 0);
  try {
    (void)session.simulate_step(1);
    FAIL() << "must name the operator";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("linalg_svd"), HasSubstr("256"), HasSubstr("forward"),
                                    HasSubstr("model.layers.0")));
  }
}

TEST(SessionOptionsTest, MoreRanksThanCoresIsRefusedWithNumbers) {
  try {
    const Session session(SessionOptions{.instance = "trn1.2xlarge", .world_size = 8});
    FAIL() << "8 ranks do not fit 2 cores";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("8 ranks"), HasSubstr("trn1.2xlarge"),
                                    HasSubstr("2 logical NeuronCores"), HasSubstr("--instance")));
  }
}

}  // namespace
}  // namespace trellis::device
