#include "traces/report/text_table.h"

#include <gtest/gtest.h>

#include "base/number_text.h"

namespace trellis::analysis {
namespace {

int digits_of(const std::string& text) {
  int digits = 0;
  bool begun = false;
  for (const char c : text) {
    begun = begun || (c >= '1' && c <= '9');
    digits += begun && c >= '0' && c <= '9' ? 1 : 0;
  }
  return digits;
}

TEST(Numbers, HaveThreeToFiveDigitsForPeopleWhateverTheirSize) {
  for (double value = 1.2345678e-4; value < 99'999; value *= 1.7) {
    const std::string text = significant(value);
    EXPECT_GE(digits_of(text), 3) << text;
    EXPECT_LE(digits_of(text), 5) << text;
    EXPECT_NEAR(std::stod(text), value, value * 0.6e-3);
  }
  for (std::int64_t ps = 1234; ps < 1'000'000'000'000'000; ps = ps * 17 / 10) {
    EXPECT_GE(digits_of(milliseconds_text(ps)), 3) << milliseconds_text(ps);
    EXPECT_LE(digits_of(milliseconds_text(ps)), 5) << milliseconds_text(ps);
  }
  for (std::int64_t bytes = 1 << 20; bytes < (std::int64_t{1} << 49); bytes = bytes * 17 / 10) {
    EXPECT_GE(digits_of(human_bytes(bytes)), 3) << human_bytes(bytes);
    EXPECT_LE(digits_of(human_bytes(bytes)), 5) << human_bytes(bytes);
  }
}

TEST(Numbers, ReadAsTheyShould) {
  EXPECT_EQ(significant(0.083372), "0.08337");
  EXPECT_EQ(significant(5263.54), "5264");
  EXPECT_EQ(significant(0), "0");
  EXPECT_EQ(milliseconds_text(4'711'433'741), "4.711 ms");
  EXPECT_EQ(milliseconds_text(52'635'446'638'450), "52.64 s");
  EXPECT_EQ(milliseconds_text(0), "0 ms");
  EXPECT_EQ(change_in_ms(1), "+1 ps") << "the smallest change that a gate sees";
  EXPECT_EQ(change_in_ms(-213'400), "-213.4 ns");
  EXPECT_EQ(change_in_percent(1000, 1013), "+1.30 %");
  EXPECT_EQ(share_text(1, 3), "33.3 %");
  EXPECT_EQ(rate_text(460'187.3), "460,200");
  EXPECT_EQ(rate_text(12.7), "13");
}

}  // namespace
}  // namespace trellis::analysis
