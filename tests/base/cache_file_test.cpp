#include "base/files/cache_file.h"

#include <fstream>
#include <iterator>
#include <map>
#include <random>

#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"

namespace trellis {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSchema = "trellis.test/1";
constexpr ContentHash kKey{1, 2}, kOther{1, 3};

class CacheFileTest : public testing::Test {
 protected:
  CacheFileTest() { fs::create_directories(folder_); }
  ~CacheFileTest() override { fs::remove_all(folder_); }

  void put(const std::string& bytes) const { std::ofstream(file_, std::ios::binary) << bytes; }
  [[nodiscard]] std::string bytes() const {
    std::ifstream stream(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  /// That the file is a miss for both readers, with one warning each that names it.
  void expect_miss(const std::string& what) const {
    std::vector<std::string> warnings;
    {
      const LogTap tap([&](LogLevel, std::string_view text) { warnings.emplace_back(text); });
      EXPECT_EQ(read_cache_file(file_, kSchema, kKey), std::nullopt) << what;
      EXPECT_FALSE(map_cache_file(file_, kSchema, kKey)) << what;
    }
    EXPECT_THAT(warnings, testing::SizeIs(2)) << what;
    EXPECT_THAT(warnings, testing::Each(testing::StartsWith(
                              file_.string() + ": a cached result is ignored and made again: ")))
        << what;
  }

  fs::path folder_ =
      fs::temp_directory_path() / ("trellis_cache_file_" + std::to_string(::getpid()));
  fs::path file_ = folder_ / "entry";
};

TEST_F(CacheFileTest, GivesThePayloadAgain) {
  for (const std::string& payload :
       {std::string(), std::string("a\0b\n", 4), std::string(1'000'000, 'x')}) {
    write_cache_file(file_, kSchema, kKey, payload);
    EXPECT_EQ(read_cache_file(file_, kSchema, kKey), payload);
    EXPECT_EQ(map_cache_file(file_, kSchema, kKey).value().payload, payload);
    EXPECT_TRUE(is_cache_file(file_));
  }
}

TEST_F(CacheFileTest, NoFileIsAMissWithoutAWord) {
  bool said = false;
  const LogTap tap([&](LogLevel, std::string_view) { said = true; });
  EXPECT_EQ(read_cache_file(file_, kSchema, kKey), std::nullopt);
  EXPECT_FALSE(map_cache_file(file_, kSchema, kKey));
  EXPECT_FALSE(said);
}

TEST_F(CacheFileTest, AnotherKeySchemaOrVersionIsAMiss) {
  write_cache_file(file_, kSchema, kOther, "payload");
  expect_miss("another key");
  write_cache_file(file_, "trellis.test/2", kKey, "payload");
  expect_miss("another version");
  write_cache_file(file_, "trellis.test_of_more/1", kKey, "payload");
  expect_miss("another schema");
}

TEST_F(CacheFileTest, EveryPrefixAndEveryChangedBitIsAMiss) {
  write_cache_file(file_, kSchema, kKey, "the payload of an entry");
  const std::string whole = bytes();
  for (std::size_t i = 0; i < whole.size(); ++i) {
    put(whole.substr(0, i));
    expect_miss("cut off at " + std::to_string(i));
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
    put(changed);
    expect_miss("changed at " + std::to_string(i));
    changed[i] = '\0';
    if (changed == whole) continue;
    put(changed);
    expect_miss("NUL at " + std::to_string(i));
  }
  put(whole + "x");
  expect_miss("longer");
  put(whole + whole);
  expect_miss("twice");
}

TEST_F(CacheFileTest, ForeignContentIsAMiss) {
  std::mt19937 random(7);
  for (const std::string& foreign :
       {std::string(), std::string("{\"files\":{}}"), std::string("trellis cache file 1\n"),
        std::string(10'000, '\0')}) {
    put(foreign);
    expect_miss(foreign.substr(0, 30));
  }
  for (int i = 0; i < 200; ++i) {
    std::string noise = i % 2 == 0 ? "" : "trellis cache file 1\n";
    for (std::size_t size = random() % 300; noise.size() < size;)
      noise += static_cast<char>(random());
    put(noise);
    expect_miss("noise");
  }
}

TEST_F(CacheFileTest, WhatIsNoRegularFileIsAMiss) {
  fs::create_directories(file_ / "inside");
  expect_miss("a folder");
  EXPECT_FALSE(is_cache_file(file_));
  fs::remove_all(file_);
  ASSERT_EQ(::mkfifo(file_.c_str(), 0600), 0);
  expect_miss("a pipe without a writer");
  EXPECT_FALSE(is_cache_file(file_));
  fs::remove(file_);
  fs::create_symlink("/dev/zero", file_);
  expect_miss("a device");
  EXPECT_FALSE(is_cache_file(file_));
  fs::remove(file_);
  fs::create_symlink(file_, file_);
  expect_miss("a link to itself");
}

TEST_F(CacheFileTest, APipeInItsPlaceIsReplaced) {
  ASSERT_EQ(::mkfifo(file_.c_str(), 0600), 0);
  write_cache_file(file_, kSchema, kKey, "made again");
  EXPECT_EQ(read_cache_file(file_, kSchema, kKey), "made again");
}

TEST_F(CacheFileTest, AFileTooLargeIsNotRead) {
  write_cache_file(file_, kSchema, kKey, "payload");
  fs::resize_file(file_, std::uintmax_t{1} << 40);
  expect_miss("a sparse file of a tebibyte");
}

}  // namespace
}  // namespace trellis
