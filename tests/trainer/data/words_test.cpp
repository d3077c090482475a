#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "trainer/files/data/tokenizers/regex.h"
#include "trainer/files/data/tokenizers/word_cache.h"
#include "trainer/files/data/tokenizers/word_scanner.h"

namespace trellis::trainer {
namespace {

/// The kinds of characters that the patterns distinguish, in ASCII and beyond it: letters,
/// contractions, digits, marks, spaces and line ends of several kinds.
std::string random_text(std::mt19937& random) {
  static const std::vector<std::string> parts = {"a",
                                                 "Z",
                                                 "s",
                                                 "\xC3\xA9",
                                                 "\xE6\x97\xA5",
                                                 "\xC5\xBF",
                                                 "'",
                                                 "'s",
                                                 "'LL",
                                                 "'ve",
                                                 "1",
                                                 "9",
                                                 "\xD9\xA3",
                                                 "_",
                                                 "-",
                                                 "(",
                                                 "\x1C",
                                                 " ",
                                                 " ",
                                                 "  ",
                                                 "\t",
                                                 "\n",
                                                 "\r\n",
                                                 "\v",
                                                 "\xC2\xA0",
                                                 "\xE3\x80\x80",
                                                 "\xF0\x9F\x8C\xB1",
                                                 "``",
                                                 "\x7F"};
  std::string text;
  const std::size_t count = 1 + random() % 12;
  for (std::size_t i = 0; i < count; ++i) text += parts[random() % parts.size()];
  return text;
}

TEST(WordScanner, EqualsItsPattern) {
  std::mt19937 random(7);
  for (const char* pattern : {kGpt2Pattern, kLlama3Pattern}) {
    const Regex regex(pattern, "test");
    const WordEnd word_end = word_scanner_for(pattern).value();
    for (int i = 0; i < 20'000; ++i) {
      const std::string text = random_text(random);
      for (std::size_t begin = 0; begin < text.size();) {
        const auto match = regex.find(text, begin);
        ASSERT_TRUE(match && match->begin == begin) << text;
        ASSERT_EQ(word_end(text, begin), match->end)
            << pattern << ": \"" << text << "\" at " << begin;
        begin = match->end;
      }
    }
  }
}

/// One id for words of one kind of length, several for others.
std::vector<std::int32_t> ids_of(const std::string& word) {
  std::vector<std::int32_t> ids;
  const std::size_t hash = std::hash<std::string>()(word);
  for (std::size_t i = 0; i <= hash % 5; ++i)
    ids.push_back(static_cast<std::int32_t>(hash >> 8 * i));
  return ids;
}

TEST(WordCache, GivesWhatAWordWasEncodedTo) {
  std::mt19937 random(11);
  WordCache cache;
  std::vector<std::string> words;
  for (int i = 0; i < 150'000; ++i) {  // more than it keeps
    std::string word;
    const std::size_t length = 1 + random() % (i % 8 == 0 ? 70 : 18);
    while (word.size() < length) word += static_cast<char>("ab\0\xFF"[random() % 4]);
    words.push_back(word);
  }
  int encoded = 0;
  std::vector<std::int32_t> ids;
  const auto encode = [&](const std::string& word) {
    ids = {-1};
    cache.encode(word, ids, [&](std::string_view fresh, std::vector<std::int32_t>& result) {
      ++encoded;
      const std::vector<std::int32_t> fresh_ids = ids_of(std::string(fresh));
      result.insert(result.end(), fresh_ids.begin(), fresh_ids.end());
    });
    std::vector<std::int32_t> expected = ids_of(word);
    expected.insert(expected.begin(), -1);
    ASSERT_EQ(ids, expected) << word;
  };
  for (const std::string& word : words) encode(word);
  encoded = 0;
  for (std::size_t i = words.size() - 1000; i < words.size(); ++i) {
    if (words[i].size() <= 64) encode(words[i]);
  }
  EXPECT_EQ(encoded, 0) << "the newest words are known";
}

}  // namespace
}  // namespace trellis::trainer
