#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace {

/// The cases of tests/UNIT_test.cpp, as a filter of GoogleTest; empty: there is none.
std::string cases_of(std::string_view unit) {
  const std::string file = "tests/" + std::string(unit) + "_test.cpp";
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  std::string filter;
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      if (std::string_view(test.file()).ends_with(file))
        filter += std::string(filter.empty() ? "" : ":") + suite.name() + "." + test.name();
    }
  }
  return filter;
}

/// --unit=FOLDER/UNIT of a program that has several: false if it has no such one. The child of a
/// death test runs what its parent says.
bool choose_unit(int argc, char** argv) {
  constexpr std::string_view kOption = "--unit=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (!argument.starts_with(kOption)) continue;
    const std::string filter = cases_of(argument.substr(kOption.size()));
    if (filter.empty()) {
      std::cerr << "error: no case is of " << argument << '\n';
      return false;
    }
    if (testing::GTEST_FLAG(filter) == "*") testing::GTEST_FLAG(filter) = filter;
  }
  return true;
}

}  // namespace

// libsystemc.so contains a main() that needs sc_main(): both are given here, once, so that neither
// wins by link order.
extern "C" int sc_main(int, char**) { return 0; }

int main(int argc, char** argv) {
  setenv("TRELLIS_CACHE", "off",
         1);  // tests see this code's timings, not those of an earlier process
  setenv("TRELLIS_PYTHON", TRELLIS_SOURCE_DIR "/.venv/bin/python", 0);
  testing::InitGoogleTest(&argc, argv);
  if (!choose_unit(argc, argv)) return 1;
  return RUN_ALL_TESTS();
}
