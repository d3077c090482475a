#include "base/nearest.h"

#include <array>

#include <gtest/gtest.h>

namespace trellis {
namespace {

const std::array<std::string, 4> kNames{"tensor_model_parallel_size",
                                        "pipeline_model_parallel_size", "zero1", "lr"};

TEST(NearestName, FindsTheTypo) {
  EXPECT_EQ(nearest_name("tensor_model_paralel_size", kNames), "tensor_model_parallel_size");
  EXPECT_EQ(nearest_name("zero_1", kNames), "zero1");
  EXPECT_EQ(nearest_name("zero1", kNames), "zero1");
}

TEST(NearestName, FarNamesAreNotOffered) {
  EXPECT_EQ(nearest_name("completely_different", kNames), "");
  EXPECT_EQ(nearest_name("", kNames), "");
}

TEST(NearestName, DistanceLimitGrowsWithLength) {
  const std::array<std::string, 1> one{"abcdef"};
  EXPECT_EQ(nearest_name("abcxyz", one), "abcdef");  // distance 3 = 1 + 6 / 3
  EXPECT_EQ(nearest_name("abwxyz", one), "");        // distance 4
}

TEST(NearestName, TieGoesToTheFirst) {
  const std::array<std::string, 2> two{"ab", "ac"};
  EXPECT_EQ(nearest_name("ad", two), "ab");
}

}  // namespace
}  // namespace trellis
