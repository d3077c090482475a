#include "base/process/launch.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace trellis {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<Launch> launch_of(const Variables& variables) {
  return find_launch([&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? "" : found->second;
  });
}

std::string refusal_of(const Variables& variables) {
  try {
    (void)launch_of(variables);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Launch, NoVariablesIsOneProcess) { EXPECT_FALSE(launch_of({})); }

TEST(Launch, OneProcessOfOneIsAlone) {
  EXPECT_FALSE(launch_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}}));
  EXPECT_FALSE(launch_of({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}));
}

TEST(Launch, TorchrunSaysAll) {
  const auto launch = launch_of({{"RANK", "3"},
                                 {"WORLD_SIZE", "8"},
                                 {"LOCAL_RANK", "1"},
                                 {"MASTER_ADDR", "node1"},
                                 {"MASTER_PORT", "41000"},
                                 {"TORCHELASTIC_RUN_ID", "x"},
                                 {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                 {"TORCHELASTIC_RESTART_COUNT", "2"}});
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->launcher, "torchrun");
  EXPECT_EQ(launch->process, 3);
  EXPECT_EQ(launch->processes, 8);
  EXPECT_EQ(launch->address, "node1");
  EXPECT_EQ(launch->port, 41000);
  EXPECT_TRUE(launch->store_is_there);
  EXPECT_EQ(launch->restart, 2);
  EXPECT_EQ(launch->local_process, 1);
}

TEST(Launch, ThePlaceOnTheHostIsOfTheLauncher) {
  const auto slurm = launch_of({{"SLURM_PROCID", "9"},
                                {"SLURM_STEP_NUM_TASKS", "16"},
                                {"SLURM_LOCALID", "2"},
                                {"LOCAL_RANK", "5"},
                                {"MASTER_ADDR", "node1"}});
  EXPECT_EQ(slurm->local_process, 2);
  const auto pods =
      launch_of({{"JOB_COMPLETION_INDEX", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "job-0.svc"}});
  EXPECT_EQ(pods->local_process, 0) << "each pod is a host";
}

/// srun starts one torchrun per node, whose processes have the variables of both.
TEST(Launch, TorchrunUnderSlurmIsTorchrun) {
  const auto launch = launch_of({{"RANK", "5"},
                                 {"WORLD_SIZE", "8"},
                                 {"MASTER_ADDR", "node1"},
                                 {"MASTER_PORT", "41000"},
                                 {"TORCHELASTIC_RUN_ID", "x"},
                                 {"SLURM_PROCID", "1"},
                                 {"SLURM_STEP_NUM_TASKS", "2"}});
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->process, 5);
  EXPECT_FALSE(launch->store_is_there);
}

TEST(Launch, SlurmNamesItsFirstHostAndAPortOfTheJob) {
  Variables variables{{"SLURM_PROCID", "1"},
                      {"SLURM_STEP_NUM_TASKS", "4"},
                      {"SLURM_STEP_NODELIST", "node[03-07,9]"},
                      {"SLURM_JOB_ID", "123456"}};
  EXPECT_EQ(launch_of(variables)->address, "node03");
  EXPECT_EQ(launch_of(variables)->port, 20000 + 3456);
  variables["SLURM_STEP_NODELIST"] = "alpha,beta";
  EXPECT_EQ(launch_of(variables)->address, "alpha");
  variables["SLURM_STEP_NODELIST"] = "alpha";
  EXPECT_EQ(launch_of(variables)->address, "alpha");
  variables["MASTER_ADDR"] = "10.0.0.1";
  variables["MASTER_PORT"] = "777";
  EXPECT_EQ(launch_of(variables)->address, "10.0.0.1");
  EXPECT_EQ(launch_of(variables)->port, 777);
}

/// A batch script has these, and is one process.
TEST(Launch, ASlurmBatchScriptIsAlone) {
  EXPECT_FALSE(launch_of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}));
}

TEST(Launch, OpenMpiOnOneHostNeedsNoAddress) {
  Variables variables{{"OMPI_COMM_WORLD_RANK", "1"},
                      {"OMPI_COMM_WORLD_SIZE", "8"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "8"}};
  EXPECT_EQ(launch_of(variables)->address, "127.0.0.1");
  variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = "4";
  EXPECT_THAT(refusal_of(variables), testing::HasSubstr("MASTER_ADDR is not"));
}

TEST(Launch, AnIndexedJobTakesItsSizeFromTheTemplate) {
  Variables variables{{"JOB_COMPLETION_INDEX", "2"}, {"MASTER_ADDR", "job-0.job"}};
  EXPECT_THAT(refusal_of(variables), testing::HasSubstr("WORLD_SIZE is not"));
  variables["WORLD_SIZE"] = "4";
  EXPECT_EQ(launch_of(variables)->process, 2);
}

TEST(Launch, HalfAnEnvironmentIsRefused) {
  EXPECT_THAT(refusal_of({{"RANK", "1"}}), testing::HasSubstr("WORLD_SIZE is not"));
  EXPECT_THAT(refusal_of({{"WORLD_SIZE", "2"}}), testing::HasSubstr("RANK is not"));
  EXPECT_THAT(refusal_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}}),
              testing::HasSubstr("MASTER_ADDR is not"));
  EXPECT_THAT(refusal_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}),
              testing::HasSubstr("MASTER_PORT is not"));
  EXPECT_THAT(refusal_of({{"SLURM_STEP_NUM_TASKS", "2"}}),
              testing::HasSubstr("SLURM_PROCID is not"));
}

TEST(Launch, NumbersAreChecked) {
  EXPECT_THAT(refusal_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
              testing::HasSubstr("RANK=2: expected a whole number from 0 to 1"));
  EXPECT_THAT(refusal_of({{"RANK", "x"}, {"WORLD_SIZE", "2"}}), testing::HasSubstr("RANK=x"));
  EXPECT_THAT(refusal_of({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), testing::HasSubstr("WORLD_SIZE=0"));
}

TEST(Launch, TwoLaunchersAreRefusedByName) {
  const std::string text = refusal_of({{"RANK", "0"},
                                       {"WORLD_SIZE", "2"},
                                       {"OMPI_COMM_WORLD_RANK", "1"},
                                       {"OMPI_COMM_WORLD_SIZE", "2"}});
  EXPECT_THAT(text, testing::HasSubstr("torchrun (RANK=0, WORLD_SIZE=2)"));
  EXPECT_THAT(text, testing::HasSubstr("mpirun (Open MPI) (OMPI_COMM_WORLD_RANK=1"));
}

TEST(Launch, MpichSaysNothingAboutHosts) {
  EXPECT_THAT(refusal_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}), testing::HasSubstr("MPICH"));
}

}  // namespace
}  // namespace trellis
