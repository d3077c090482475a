#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace trellis::trainer {

/// Words that were encoded before, with their ids. Two tables with open addressing: one of short
/// words with few ids, all in one place of half a cache line, and one of the others. A full table
/// starts again empty, so that memory stays bounded.
class WordCache {
 public:
  WordCache();
  /// Appends the ids of `word`: those that are known, or those that `encode_new(word, ids)`
  /// appends.
  template <typename EncodeNew>
  void encode(std::string_view word, std::vector<std::int32_t>& ids, EncodeNew encode_new) {
    const ShortWord key = word.size() <= kShortWord ? short_word(word) : ShortWord{};
    if (key.length > 0) {
      if (const ShortEntry* known = find(key)) {
        for (int i = 0; i < known->num_ids; ++i) ids.push_back(known->ids[i]);
        return;
      }
    }
    if (const auto known = find_long(word); !known.empty()) {
      ids.insert(ids.end(), known.begin(), known.end());
      return;
    }
    const std::size_t first = ids.size();
    encode_new(word, ids);
    insert(word, key, std::span(ids).subspan(first));
  }

 private:
  static constexpr std::uint64_t kShortPlaces = 1 << 17, kLongPlaces = 1 << 16;
  static constexpr std::size_t kShortWord = 16, kFewIds = 3, kLongestWord = 64;

  /// A word of up to 16 bytes as two numbers, which overlap where it has fewer.
  struct ShortWord {
    std::uint64_t low = 0, high = 0;
    std::uint8_t length = 0;  ///< 0: no short word
    [[nodiscard]] std::uint64_t place() const {
      const std::uint64_t mixed = low * 0x9E3779B97F4A7C15 ^ (high + length) * 0xC2B2AE3D27D4EB4F;
      return (mixed ^ mixed >> 32) & (kShortPlaces - 1);
    }
  };
  struct ShortEntry {
    std::uint64_t low = 0, high = 0;
    std::int32_t ids[kFewIds] = {};
    std::uint8_t length = 0, num_ids = 0;  ///< num_ids 0: an empty place
  };
  static_assert(sizeof(ShortEntry) == 32);
  struct LongEntry {
    std::uint32_t hash = 0, text = 0, ids = 0;
    std::uint16_t length = 0, num_ids = 0;  ///< num_ids 0: an empty place
  };

  template <typename Number>
  [[nodiscard]] static std::uint64_t number_at(const char* place) {
    Number number = 0;
    std::memcpy(&number, place, sizeof number);
    return number;
  }
  [[nodiscard]] static ShortWord short_word(std::string_view word) {
    const char *begin = word.data(), *end = begin + word.size();
    const auto length = static_cast<std::uint8_t>(word.size());
    if (length >= 8)
      return {number_at<std::uint64_t>(begin), number_at<std::uint64_t>(end - 8), length};
    if (length >= 4)
      return {number_at<std::uint32_t>(begin), number_at<std::uint32_t>(end - 4), length};
    if (length == 0) return {};
    return {number_at<std::uint8_t>(begin) | number_at<std::uint8_t>(begin + length / 2) << 8 |
                number_at<std::uint8_t>(end - 1) << 16,
            0, length};
  }
  [[nodiscard]] const ShortEntry* find(const ShortWord& word) const {
    for (std::uint64_t place = word.place();; place = (place + 1) & (kShortPlaces - 1)) {
      const ShortEntry& entry = short_[place];
      if (entry.num_ids == 0) return nullptr;
      if (entry.low == word.low && entry.high == word.high && entry.length == word.length)
        return &entry;
    }
  }
  /// The ids, or an empty span. Valid until the next insert().
  [[nodiscard]] std::span<const std::int32_t> find_long(std::string_view word) const;
  void insert(std::string_view word, const ShortWord& key, std::span<const std::int32_t> ids);
  void insert_long(std::string_view word, std::span<const std::int32_t> ids);

  std::vector<ShortEntry> short_;
  std::vector<LongEntry> long_;
  std::vector<char> text_;         ///< of long_
  std::vector<std::int32_t> ids_;  ///< of long_
  std::size_t short_used_ = 0, long_used_ = 0;
};

}  // namespace trellis::trainer
