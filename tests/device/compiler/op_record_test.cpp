#include "device/compiler/graph/op_record.h"

#include <gtest/gtest.h>

#include <set>

namespace trellis::device {
namespace {

TEST(InternTable, EqualTextsShareAnIdAndDifferentOnesDoNot) {
  InternTable table;
  std::set<std::uint32_t> ids;
  for (int i = 0; i < 1000; ++i)
    ids.insert(table.text("aten::op_with_a_name_" + std::to_string(i)));
  EXPECT_EQ(ids.size(), 1000u);
  for (int i = 0; i < 1000; ++i) {
    const std::string text = "aten::op_with_a_name_" + std::to_string(i);
    const std::uint32_t id = table.text(text);
    EXPECT_TRUE(ids.contains(id));
    EXPECT_EQ(std::as_const(table).text(id), text);
  }
}

TEST(InternTable, NothingIsZero) {
  InternTable table;
  EXPECT_EQ(table.text(""), 0u);
  EXPECT_EQ(table.scope(Scope{}), 0u);
  EXPECT_NE(table.text("x"), 0u);
}

TEST(InternTable, TextsStayWhereTheyAre) {
  InternTable table;
  const std::uint32_t id = table.text("a");  // short enough to live inside the string object
  const std::string* where = &std::as_const(table).text(id);
  for (int i = 0; i < 10000; ++i) table.text(std::to_string(i));
  EXPECT_EQ(&std::as_const(table).text(id), where);
  EXPECT_EQ(table.text("a"), id);
}

TEST(InternTable, ViewsDifferByEveryField) {
  InternTable table;
  const TensorView view{{2, 3}, {3, 1}, 0, DType::kBf16};
  const std::uint32_t id = table.view(view);
  EXPECT_EQ(table.view(TensorView(view)), id);
  EXPECT_EQ(std::as_const(table).view(id), view);
  TensorView other = view;
  other.sizes[0] = 4;
  EXPECT_NE(table.view(other), id);
  other = view;
  other.strides[0] = 6;
  EXPECT_NE(table.view(other), id);
  other = view;
  other.offset = 1;
  EXPECT_NE(table.view(other), id);
  other = view;
  other.dtype = DType::kFp32;
  EXPECT_NE(table.view(other), id);
}

TEST(InternTable, Scopes) {
  InternTable table;
  const std::uint32_t forward = table.scope({"forward", 0, "model.layers.0"});
  const std::uint32_t backward = table.scope({"backward", 0, "model.layers.0"});
  EXPECT_NE(forward, backward);
  EXPECT_EQ(table.scope({"forward", 0, "model.layers.0"}), forward);
  EXPECT_EQ(std::as_const(table).scope(backward).phase, "backward");
}

TEST(BufferCategory, EachHasAName) {
  std::set<std::string_view> names;
  for (int c = 0; c < kNumBufferCategories; ++c) names.insert(name(static_cast<BufferCategory>(c)));
  EXPECT_EQ(names, (std::set<std::string_view>{"parameter", "gradient", "optimizer_state",
                                               "activation", "temporary", "input"}));
}

}  // namespace
}  // namespace trellis::device
