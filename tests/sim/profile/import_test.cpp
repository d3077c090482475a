#include "sim/profile/import.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>

#include "base/error.h"
#include "base/files/input_file.h"
#include "sim/config/load_system.h"
#include "sim/config/system_config.h"
#include "sim/profile/operand_text.h"
#include "tests/sim/profile/small_profile.h"
#include "tests/support/temporary_directory.h"

namespace trellis::sim {
namespace {

using isa::Engine;
using isa::Opcode;
using nlohmann::json;
using samples::small_profile;

const std::filesystem::path kProfiles =
    std::filesystem::path(TRELLIS_SOURCE_DIR) / "benchmarks/published/profiles";

isa::Limits limits() {
  LoadOptions options;
  options.logical_core_size = 1;
  return load_system("trn2.3xlarge", options).chip.core.limits;
}

ImportedProgram import(const json& profile) {
  return import_program(parse_profile(profile.dump(), "p.json"), limits());
}

/// Returns the error of the import of a changed profile.
std::string refusal(const std::function<void(json&)>& change,
                    ExitCode expected = ExitCode::kConfig) {
  json profile = small_profile();
  change(profile);
  try {
    (void)import(profile);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), expected) << error.what();
    return error.what();
  }
  return "";
}

void expect_refused(const std::function<void(json&)>& change, const std::vector<std::string>& parts,
                    ExitCode code = ExitCode::kConfig) {
  const std::string text = refusal(change, code);
  for (const auto& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
}

void replace(json& profile, std::size_t place, const std::string& from, const std::string& to) {
  auto text = profile["instruction"][place]["operands"].get<std::string>();
  const auto at = text.find(from);
  ASSERT_NE(at, std::string::npos);
  profile["instruction"][place]["operands"] = text.replace(at, from.size(), to);
}

TEST(ProfileImport, EveryInstructionOfTheFourProfilesIsThereOnce) {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kProfiles)) {
    if (entry.path().extension() != ".xz") continue;
    ++files;
    const Profile profile = read_profile(entry.path());
    const ImportedProgram imported = import_program(profile, limits());
    std::size_t of_program = 0, transfers = 0;
    for (const auto& i : profile.instructions) {
      of_program += i.of_program ? 1 : 0;
      transfers += i.of_program && i.opcode == "DMA_DIRECT2D" ? 1 : 0;
    }
    EXPECT_EQ(imported.program.instruction_count(), static_cast<std::int64_t>(of_program));
    EXPECT_EQ(imported.transfers.size(), transfers);
    for (const auto& t : imported.transfers) {
      EXPECT_GT(t.first, t.trigger) << t.queue << ", " << t.index;
      EXPECT_GT(t.last, t.first) << t.queue << ", " << t.index;
    }
    EXPECT_EQ(isa::parse_program(isa::print(imported.program)), imported.program);
    EXPECT_TRUE(isa::validate(imported.program, limits()).empty());
  }
  EXPECT_EQ(files, 4u);
}

/// Each of our semaphores takes, in all, the largest value for which its engine waits on theirs.
TEST(ProfileImport, WaitsTakeWhatTheyWaitFor) {
  const Profile profile = read_profile(kProfiles / "plain-fp32-1024.json.xz");
  const ImportedProgram imported = import_program(profile, limits());
  std::map<std::pair<Engine, std::uint32_t>, std::int64_t> largest;
  for (const auto& i : profile.instructions) {
    if (!i.of_program) continue;
    for (const auto& s : read_instruction_text(i.operands).semaphores) {
      std::int64_t& value = largest[{i.engine, s.id}];
      if (s.action == ">=") value = std::max(value, s.value);
    }
  }
  std::int64_t expected = 0, taken = 0;
  for (const auto& [key, value] : largest) expected += value;
  for (const auto& queue : imported.program.segments.front().queues) {
    for (const auto& i : queue) {
      for (const auto& wait : i.waits) taken += wait.value;
    }
  }
  EXPECT_EQ(taken, expected);
}

TEST(ProfileImport, SmallProfile) {
  const ImportedProgram imported = import(small_profile());
  const auto& queues = imported.program.segments.front().queues;
  const auto& load = queues[static_cast<std::size_t>(Engine::kTensor)][0];
  EXPECT_EQ(load.opcode, Opcode::kLoadStationary);
  EXPECT_EQ(load.src0.elements_per_partition(), 128);
  EXPECT_EQ(load.src0.dims[0].stride, -1);
  ASSERT_EQ(load.waits.size(), 1u);
  EXPECT_EQ(load.waits[0].value, 16);
  const auto& store = queues[static_cast<std::size_t>(Engine::kScalar)][1];
  EXPECT_EQ(store.opcode, Opcode::kDma);
  EXPECT_EQ(store.dst.bytes(), 128 * 512);
  EXPECT_EQ(store.dma_descriptors, isa::DmaDescriptors::kHardware);
  ASSERT_EQ(imported.transfers.size(), 2u);
  EXPECT_EQ(imported.transfers[1].first, 2330);
  EXPECT_EQ(imported.transfers[1].last, 2499);
  const auto& hbm = imported.program.buffers[store.dst.buffer];
  EXPECT_EQ(hbm.bytes, 128 * 512);
  EXPECT_EQ(store.dst.offset, 0);
}

TEST(ProfileImport, TextOfOperands) {
  const auto operand = read_operand_text("bfloat16@0x37afe[-1,0,-32][32,1,4]");
  ASSERT_TRUE(operand);
  EXPECT_EQ(operand->address, 0x37afeu);
  EXPECT_EQ(operand->strides, (std::vector<std::int64_t>{-1, 0, -32}));
  EXPECT_EQ(operand->counts, (std::vector<std::int64_t>{32, 1, 4}));
  EXPECT_FALSE(read_operand_text("fp32@0x10[1,1][1]"));
  EXPECT_FALSE(read_operand_text("fp32@zz[1][1]"));
  const InstructionText text = read_instruction_text(
      "S[9] (qGpSimdDynamic)>=16 setter=0 S[4] (Scalar)++@complete $S[2]+=3@complete EXP 128*64");
  ASSERT_EQ(text.semaphores.size(), 3u);
  EXPECT_EQ(text.semaphores[0].id, 9u);
  EXPECT_EQ(text.semaphores[0].action, ">=");
  EXPECT_EQ(text.semaphores[0].value, 16);
  EXPECT_EQ(text.semaphores[1].action, "++");
  EXPECT_EQ(text.semaphores[2].value, 3);
  EXPECT_EQ(text.find("setter"), "0");
  EXPECT_EQ(text.words, (std::vector<std::string>{"EXP", "128*64"}));
}

TEST(ProfileImport, NamesWhatItDoesNotExpress) {
  json profile = small_profile();
  replace(profile, 4, "S[4] (Scalar)++@complete", "S[4] (Scalar)++@complete S[7]--@complete");
  const ImportedProgram imported = import(profile);
  std::string notes;
  for (const auto& note : imported.notes) notes += note + "\n";
  EXPECT_NE(notes.find("scalar pc 30 COPY: S[7]-- is not expressed"), std::string::npos) << notes;
  EXPECT_NE(notes.find("1 DRAIN"), std::string::npos) << notes;
}

TEST(BadProfile, IsNamedWithInstructionAndKey) {
  expect_refused([](json& p) { p["instruction"][4]["opcode"] = "FROBNICATE"; },
                 {"p.json: instruction[4] (scalar pc 30 FROBNICATE).opcode", "unknown opcode"});
  expect_refused([](json& p) { replace(p, 4, "dst=fp32@0x4000", "dst=fp32@0x38000"); },
                 {"instruction[4] (scalar pc 30 COPY).operands", "touches bytes"});
  expect_refused([](json& p) { replace(p, 4, "dst=fp32@0x4000", "dst=fp32@0x9000000"); },
                 {"instruction[4]", ".dst", "outside SBUF and PSUM"});
  expect_refused([](json& p) { replace(p, 3, "dst=0x2000000", "dst=0x2003f00"); },
                 {"instruction[3]", "PSUM"});
  expect_refused([](json& p) { replace(p, 1, "dst_pattern=[262144,1]", "dst_pattern=[262144]"); },
                 {"instruction[1] (sync pc 11 DMA_DIRECT2D).dst_pattern"});
  expect_refused([](json& p) { replace(p, 4, "channels=128", "channels=129"); },
                 {"instruction[4]", "partitions"});
  expect_refused([](json& p) { p["instruction"][2]["timestamp"] = -5; },
                 {"p.json: instruction[2].timestamp", "-5"});
  expect_refused([](json& p) { p["instruction"][2].erase("operands"); },
                 {"instruction[2].operands", "is missing"});
  expect_refused([](json& p) { p.erase("instruction"); }, {"has no list \"instruction\""});
}

TEST(BadProfile, WaitsThatAreNeverSatisfied) {
  expect_refused([](json& p) { replace(p, 4, ">=1", ">=2"); },
                 {"instruction[4] (scalar pc 30 COPY)", "S[5]>=2", "adds 1 in all"},
                 ExitCode::kHang);
}

TEST(BadProfile, CutOffAndForeignFiles) {
  const std::string good = read_input_file(kProfiles / "fused-fp32-512.json.xz");
  const auto refused = [](const std::string& bytes) -> std::string {
    try {
      (void)parse_profile(bytes, "p");
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refused(good.substr(0, good.size() / 2)).find("cut off"), std::string::npos);
  std::string damaged = good;
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 0x55);
  EXPECT_NE(refused(damaged).find("damaged"), std::string::npos) << refused(damaged);
  const std::string text = small_profile().dump();
  EXPECT_NE(refused(text.substr(0, text.size() / 2)).find("no JSON"), std::string::npos);
  EXPECT_NE(refused("{\"traceEvents\": []}").find("neuron-profile"), std::string::npos);
  EXPECT_NE(refused("[]").find("neuron-profile"), std::string::npos);
}

}  // namespace
}  // namespace trellis::sim
