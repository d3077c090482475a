#include "base/files/share_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/output_error.h"

namespace trellis {
namespace {

namespace fs = std::filesystem;

class ShareFile : public testing::Test {
 protected:
  ShareFile() { fs::create_directories(folder_); }
  ~ShareFile() override { fs::remove_all(folder_); }

  static std::string read(const fs::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  [[nodiscard]] fs::path write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  /// 0: it is not there.
  static dev_t device_of(const fs::path& path) {
    struct stat facts{};
    return ::stat(path.c_str(), &facts) == 0 ? facts.st_dev : 0;
  }
  [[nodiscard]] std::ptrdiff_t files() const {
    return std::distance(fs::directory_iterator(folder_), {});
  }

  fs::path folder_ = fs::temp_directory_path() / ("trellis_share_" + std::to_string(::getpid()));
};

TEST_F(ShareFile, ReplacesWhatIsThereAndLeavesNothingElse) {
  const fs::path from = write("from", "new"), to = write("to", "old and longer");
  for (int again = 0; again < 2; ++again) {  // the second time both are one file already
    share_file(from, to);
    EXPECT_EQ(read(to), "new");
    EXPECT_EQ(files(), 2);
  }
  fs::remove(from);
  EXPECT_EQ(read(to), "new");
}

TEST_F(ShareFile, AnotherFileSystemGetsACopy) {
  const fs::path from = write("from", "text");
  // Files of tests are in memory or on the disk of the build: one of these is elsewhere.
  const std::vector<fs::path> places = {"/dev/shm", TRELLIS_BUILD_DIR, "/var/tmp"};
  const auto other = std::ranges::find_if(places, [&](const fs::path& place) {
    return device_of(place) != 0 && device_of(place) != device_of(from);
  });
  if (other == places.end()) GTEST_SKIP() << "all folders are on one file system";
  const fs::path to = *other / ("trellis_share_" + std::to_string(::getpid()));
  share_file(from, to);
  EXPECT_EQ(read(to), "text");
  std::ofstream(from) << "other";
  EXPECT_EQ(read(to), "text") << "a copy";
  fs::remove(to);
}

TEST_F(ShareFile, FailuresAreNamed) {
  EXPECT_THROW(share_file(folder_ / "none", folder_ / "to"), OutputError);
  const fs::path from = write("from", "text");
  EXPECT_THROW(share_file(from, folder_ / "none/to"), OutputError);
  fs::create_directory(folder_ / "taken");
  EXPECT_THROW(share_file(from, folder_ / "taken"), OutputError);
  EXPECT_EQ(files(), 2);
}

}  // namespace
}  // namespace trellis
