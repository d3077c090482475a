#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "analysis/accuracy/published_rows.h"
#include "base/error.h"

namespace trellis::analysis {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class PublishedRowsFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("trellis_rows_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    ::setenv("TRELLIS_PUBLISHED_DIR", folder_.c_str(), 1);
  }
  void TearDown() override {
    ::unsetenv("TRELLIS_PUBLISHED_DIR");
    fs::remove_all(folder_);
  }
  void write(const std::string& rows) const {
    std::ofstream(folder_ / "kernels.yaml") << "rows:\n" << rows;
  }
  static std::string error() {
    try {
      (void)read_published_rows("kernels");
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "no error";
  }

  fs::path folder_;
};

TEST_F(PublishedRowsFile, IsReadWithWhatToRun) {
  write(
      "  - {id: A, source: a table, group: g, instance: trn1.2xlarge, use: fit, time_us: 12.5, m: "
      "128}\n");
  PublishedRows rows = read_published_rows("kernels");
  ASSERT_EQ(rows.rows.size(), 1u);
  EXPECT_EQ(rows.rows[0].use, RowUse::kFit);
  EXPECT_DOUBLE_EQ(rows.rows[0].time_us, 12.5);
  EXPECT_EQ(rows.rows[0].spec.required<std::int64_t>("m"), 128);
}

TEST_F(PublishedRowsFile, EveryMistakeIsNamedInOnePass) {
  write(
      "  - {id: A, source: s, group: g, instance: i, use: fitted, time_us: 1}\n  - {id: A, source: "
      "s, group: g, instance: i, use: excluded, time_us: -1}\n");
  EXPECT_THAT(error(),
              AllOf(HasSubstr("expected fit, test or excluded"), HasSubstr("\"A\" is there twice"),
                    HasSubstr("says why"), HasSubstr("must be positive")));
}

TEST_F(PublishedRowsFile, MissingFileIsNamed) { EXPECT_THAT(error(), HasSubstr("kernels.yaml")); }

}  // namespace
}  // namespace trellis::analysis
