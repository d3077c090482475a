#include "base/content_hash.h"

#include <string>

#include <gtest/gtest.h>

namespace trellis {
namespace {

ContentHash hash_of_bytes(const std::string& text) {
  ContentHasher hasher;
  hasher.bytes(text.data(), text.size());
  return hasher.finish();
}

TEST(ContentHash, IsXxh3AsPublished) {
  // XXH3 128-bit of the empty input with seed 0, from the algorithm's specification.
  EXPECT_EQ(hash_of_bytes("").to_string(), "99aa06d3014798d86001c324468d497f");
}

TEST(ContentHash, TextIsLengthPrefixed) {
  ContentHasher first, second;
  first.text("ab");
  first.text("c");
  second.text("a");
  second.text("bc");
  EXPECT_NE(first.finish(), second.finish());
}

TEST(ContentHash, PiecesHashAsTheWhole) {
  const std::string text(10000, 'x');
  ContentHasher hasher;
  for (std::size_t i = 0; i < text.size(); i += 100) hasher.bytes(text.data() + i, 100);
  EXPECT_EQ(hasher.finish(), hash_of_bytes(text));
}

TEST(ContentHash, FinishLeavesTheHasherUsable) {
  ContentHasher hasher;
  hasher.value(1);
  const ContentHash first = hasher.finish();
  EXPECT_EQ(hasher.finish(), first);
  hasher.value(2);
  EXPECT_NE(hasher.finish(), first);
}

TEST(ContentHash, EveryBitCounts) {
  std::string text(64, '\0');
  const ContentHash before = hash_of_bytes(text);
  for (std::size_t i = 0; i < text.size() * 8; ++i) {
    std::string changed = text;
    changed[i / 8] = static_cast<char>(1 << (i % 8));
    EXPECT_NE(hash_of_bytes(changed), before) << "bit " << i;
  }
}

}  // namespace
}  // namespace trellis
