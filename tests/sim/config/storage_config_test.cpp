#include "sim/config/storage_config.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "sim/config/load_system.h"

namespace trellis::sim {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string text_of_error(const std::function<void()>& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

std::filesystem::path write(const std::string& name, const std::string& text) {
  const auto path = std::filesystem::path(testing::TempDir()) / name;
  std::ofstream(path) << text;
  return path;
}

std::string nvme_text() {
  std::ifstream file(storage_file("nvme"));
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), with);
}

TEST(StorageConfig, RatesAreThoseOfTheDocuments) {
  EXPECT_THAT(storage_names(), ElementsAre("fsx", "nvme", "s3"));
  const SystemConfig trn1 = load_system("trn1.32xlarge");
  // EC2's table: operations of 4,096 bytes per second.
  const StorageConfig nvme = load_storage("nvme", trn1);
  EXPECT_DOUBLE_EQ(nvme.write.node.value, 720'000.0 * 4096);
  EXPECT_DOUBLE_EQ(nvme.read.node.value, 1'720'000.0 * 4096);
  EXPECT_FALSE(nvme.shared);
  const StorageConfig small = load_storage("nvme", load_system("trn1.2xlarge"));
  EXPECT_DOUBLE_EQ(small.write.node.value, 45'000.0 * 4096);
  EXPECT_DOUBLE_EQ(small.read.node.value, 107'500.0 * 4096);
  // FSx: 5 Gbps between a client and a server, 1,000 MB/s a TiB.
  const StorageConfig fsx = load_storage("fsx", trn1);
  EXPECT_TRUE(fsx.shared);
  EXPECT_DOUBLE_EQ(fsx.write.cluster.value, 1e9 * 4800 / 1024);
  EXPECT_DOUBLE_EQ(fsx.rank_rate(fsx.write).value, 5e9 / 8);
  // S3: 85 to 90 MB/s a connection, 100 Gb/s an instance, 3,500 PUT and 5,500 GET a second.
  const StorageConfig s3 = load_storage("s3", trn1);
  EXPECT_GE(s3.write.connection.value, 85e6);
  EXPECT_LE(s3.write.connection.value, 90e6);
  EXPECT_DOUBLE_EQ(s3.write.node.value, 100e9 / 8);
  EXPECT_DOUBLE_EQ(s3.write.requests_per_second, 3500);
  EXPECT_DOUBLE_EQ(s3.read.requests_per_second, 5500);
}

TEST(StorageConfig, EveryInstanceHasFiguresWithSources) {
  for (const std::string& instance : instance_names()) {
    const SystemConfig system = load_system(instance);
    for (const std::string& name : storage_names()) {
      const StorageConfig storage = load_storage(name, system);
      EXPECT_GT(storage.write.node.value, 0) << name << " " << instance;
      EXPECT_GT(storage.read.node.value, 0) << name << " " << instance;
      for (const Parameter& parameter : storage.parameters)
        EXPECT_FALSE(parameter.source.empty()) << parameter.key;
    }
  }
  EXPECT_FALSE(load_host_costs().parameters.empty());
}

TEST(StorageConfig, TheNetworkOfASmallInstanceLimitsASharedStorage) {
  const StorageConfig s3 = load_storage("s3", load_system("trn1.2xlarge"));
  EXPECT_DOUBLE_EQ(s3.write.node.value, 25e9 / 8);
}

TEST(StorageConfig, PartsAndRequestsOfAFile) {
  const StorageConfig s3 = load_storage("s3", load_system("trn1.32xlarge"));
  const std::int64_t part = s3.part.value;
  EXPECT_EQ(s3.requests(0), 1);
  EXPECT_EQ(s3.requests(part), 1);
  EXPECT_EQ(s3.requests(part + 1), 2 + 2) << "begin, two parts, end";
  EXPECT_EQ(s3.round_trips(part), 1);
  EXPECT_EQ(s3.round_trips(10 * part), 3) << "parts go at once";
  const StorageConfig nvme = load_storage("nvme", load_system("trn1.32xlarge"));
  EXPECT_EQ(nvme.requests(std::int64_t{1} << 40), 1);
}

TEST(StorageConfig, OverridesReplaceNumbers) {
  const SystemConfig system = load_system("trn1.32xlarge");
  const StorageConfig fsx = load_storage(
      "fsx", system, {"storage.capacity=1200 GiB", "storage.throughput_per_tib=125 MB/s"});
  EXPECT_DOUBLE_EQ(fsx.write.cluster.value, 125e6 * 1200 / 1024);
  EXPECT_DOUBLE_EQ(fsx.write.node.value, fsx.write.cluster.value)
      << "an instance gets no more than there is";
  EXPECT_EQ(load_host_costs({"host.restart.compile=3000 s"}).compile,
            Picoseconds(3'000'000'000'000'000));
  EXPECT_THAT(text_of_error([&] { (void)load_storage("fsx", system, {"storage.capcity=1 TiB"}); }),
              AllOf(HasSubstr("storage.capcity"), HasSubstr("did you mean storage.capacity")));
  const StorageOverrides split =
      split_overrides({"core.dma.engine_rate=20 GB/s", "storage.capacity=1 TiB", "host.x=1"});
  EXPECT_THAT(split.machine, ElementsAre("core.dma.engine_rate=20 GB/s"));
  EXPECT_THAT(split.storage, ElementsAre("storage.capacity=1 TiB"));
  EXPECT_THAT(split.host, ElementsAre("host.x=1"));
}

TEST(StorageConfig, UnknownNamesAndFilesAreErrors) {
  const SystemConfig system = load_system("trn1.32xlarge");
  EXPECT_THAT(text_of_error([&] { (void)load_storage("nvem", system); }),
              AllOf(HasSubstr("unknown storage \"nvem\""), HasSubstr("did you mean nvme?"),
                    HasSubstr("fsx, nvme, s3")));
  EXPECT_NE(text_of_error([&] { (void)load_storage("/nowhere/own.yaml", system); }), "");
  EXPECT_NE(text_of_error([&] { (void)load_storage("host", system); }), "")
      << "host.yaml is no storage";
}

TEST(StorageConfig, AUsersFileIsReadStrictly) {
  const SystemConfig system = load_system("trn1.32xlarge");
  const auto own = write("own.yaml", nvme_text());
  EXPECT_DOUBLE_EQ(load_storage(own, system).write.node.value, 720'000.0 * 4096);
  std::string broken = replaced(nvme_text(), "scope: node ", "scope: rack ");
  broken = replaced(broken, "connection: {value: 1.5 GB/s, source: \"not",
                    "connection: {value: 1.5, source: \"not");
  broken = replaced(broken, "file_latency: {value: 1 ms", "file_latncy: {value: 1 ms");
  const auto file = write("broken.yaml", broken);
  EXPECT_THAT(text_of_error([&] { (void)load_storage(file, system); }),
              AllOf(HasSubstr("broken.yaml:"), HasSubstr("expected node or cluster, got \"rack\""),
                    HasSubstr("a data rate with its unit"), HasSubstr("file_latncy"),
                    HasSubstr("did you mean 'file_latency'?")));
  const auto zero = write("zero.yaml", replaced(nvme_text(), "value: 1.5 GB/s", "value: 0 GB/s"));
  EXPECT_THAT(text_of_error([&] { (void)load_storage(zero, system); }),
              HasSubstr("expected more than 0"));
  const auto other = write("other.yaml", replaced(nvme_text(), "trn1.32xlarge:", "trn9.32xlarge:"));
  EXPECT_THAT(text_of_error([&] { (void)load_storage(other, system); }),
              AllOf(HasSubstr("has no trn1.32xlarge"), HasSubstr("trn9.32xlarge")));
}

}  // namespace
}  // namespace trellis::sim
