#include "base/byte_codec.h"

#include <limits>

#include <gtest/gtest.h>

namespace trellis {
namespace {

struct Values {
  std::int64_t number = -5;
  double real = 0.1;
  bool flag = true;
  std::string text{"a\0b", 3};
  std::vector<std::string> list{"x", "", "yz"};
  bool operator==(const Values&) const = default;
};

template <typename Visitor, typename V>
void visit(Visitor& v, V& values) {
  v(values.number), v(values.real), v(values.flag), v(values.text);
  v.list(values.list, [&](auto& item) { v(item); });
}

std::string written() {
  ByteWriter writer;
  const Values values;
  visit(writer, values);
  return writer.bytes();
}

TEST(ByteCodec, ReadsWhatWasWritten) {
  const std::string bytes = written();
  ByteReader reader(bytes);
  Values read{0, 0, false, "", {}};
  visit(reader, read);
  EXPECT_TRUE(reader.ok() && reader.at_end());
  EXPECT_EQ(read, Values());
}

TEST(ByteCodec, NoPrefixIsWhole) {
  const std::string bytes = written();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    ByteReader reader(std::string_view(bytes).substr(0, size));
    Values read;
    visit(reader, read);
    EXPECT_FALSE(reader.ok()) << size;
  }
}

TEST(ByteCodec, ALengthBeyondTheBytesIsRefusedWithoutMemory) {
  ByteWriter writer;
  writer(std::numeric_limits<std::uint64_t>::max());
  ByteReader text_reader(writer.bytes()), list_reader(writer.bytes());
  std::string text;
  text_reader(text);
  EXPECT_FALSE(text_reader.ok());
  std::vector<std::string> list;
  list_reader.list(list, [&](std::string& item) { list_reader(item); });
  EXPECT_FALSE(list_reader.ok());
  EXPECT_LE(list.size(), 1u);
}

TEST(ByteCodec, ATruthValueIsZeroOrOne) {
  ByteReader reader("\x02");
  bool flag = false;
  reader(flag);
  EXPECT_FALSE(reader.ok());
}

}  // namespace
}  // namespace trellis
