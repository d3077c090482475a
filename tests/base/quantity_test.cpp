#include <gtest/gtest.h>

#include "base/yaml/yaml.h"

namespace trellis {
namespace {

TEST(ParseQuantity, Bytes) {
  EXPECT_EQ(parse_quantity<Bytes>("24 MiB"), Bytes(24 << 20));
  EXPECT_EQ(parse_quantity<Bytes>("24MiB"), Bytes(24 << 20));
  EXPECT_EQ(parse_quantity<Bytes>("1.5 kB"), Bytes(1500));
  EXPECT_EQ(parse_quantity<Bytes>("0.1 GB"), Bytes(100'000'000));
  EXPECT_EQ(parse_quantity<Bytes>(" 7 B "), Bytes(7));
  EXPECT_EQ(parse_quantity<Bytes>("16 GiB"), Bytes(std::int64_t{16} << 30));
}

TEST(ParseQuantity, Times) {
  EXPECT_EQ(parse_quantity<Picoseconds>("7 ns"), Picoseconds(7000));
  EXPECT_EQ(parse_quantity<Picoseconds>("0.5 us"), Picoseconds(500'000));
  EXPECT_EQ(parse_quantity<Picoseconds>("2 ms"), Picoseconds(2'000'000'000));
  EXPECT_EQ(parse_quantity<Picoseconds>("1 s"), Picoseconds(1'000'000'000'000));
  EXPECT_EQ(parse_quantity<Picoseconds>("0.7143 ns"), Picoseconds(714));
}

TEST(ParseQuantity, Rates) {
  EXPECT_EQ(parse_quantity<Hertz>("1.4 GHz"), Hertz(1.4e9));
  EXPECT_EQ(parse_quantity<BytesPerSecond>("820 GB/s"), BytesPerSecond(820e9));
  EXPECT_EQ(parse_quantity<BytesPerSecond>("2.9 TB/s"), BytesPerSecond(2.9 * 1e12));
  EXPECT_EQ(parse_quantity<BytesPerSecond>("800 Gbps"), BytesPerSecond(100e9));
  EXPECT_EQ(parse_quantity<FlopsPerSecond>("92 TFLOPS"), FlopsPerSecond(92e12));
  EXPECT_EQ(parse_quantity<FlopsPerSecond>("500 GFLOPS"), FlopsPerSecond(500e9));
}

TEST(ParseQuantity, RefusesWhatIsNoQuantityOfThatDimension) {
  EXPECT_FALSE(parse_quantity<Bytes>("24"));
  EXPECT_FALSE(parse_quantity<Bytes>("24 ns"));
  EXPECT_FALSE(parse_quantity<Bytes>("MiB"));
  EXPECT_FALSE(parse_quantity<Bytes>(""));
  EXPECT_FALSE(parse_quantity<Bytes>("-1 B"));
  EXPECT_FALSE(parse_quantity<Bytes>("0.3 B"));
  EXPECT_FALSE(parse_quantity<Bytes>("inf B"));
  EXPECT_FALSE(parse_quantity<Bytes>("1e300 TB"));
  EXPECT_FALSE(parse_quantity<Picoseconds>("9223373 s"));
  EXPECT_FALSE(parse_quantity<Hertz>("1.4 ghz"));
  EXPECT_FALSE(parse_quantity<BytesPerSecond>("820 GB"));
  EXPECT_FALSE(parse_quantity<BytesPerSecond>("820 GB/s extra"));
}

}  // namespace
}  // namespace trellis
