#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace trellis::trainer {

/// Words that were encoded before, with their ids. Open addressing; when it is full it starts again
/// empty, so that memory stays bounded.
class WordCache {
 public:
  WordCache();
  [[nodiscard]] static std::uint64_t hash(std::string_view word);
  /// The ids, or an empty span. Valid until the next insert().
  [[nodiscard]] std::span<const std::int32_t> find(std::string_view word,
                                                   std::uint64_t hash) const {
    for (std::uint64_t place = hash & kMask;; place = (place + 1) & kMask) {
      const Entry& entry = entries_[place];
      if (entry.num_ids == 0) return {};
      if (entry.hash == static_cast<std::uint32_t>(hash >> 32) &&
          word == std::string_view(text_.data() + entry.text, entry.length)) {
        return {ids_.data() + entry.ids, entry.num_ids};
      }
    }
  }
  void insert(std::string_view word, std::uint64_t hash, std::span<const std::int32_t> ids);
  /// Appends the ids of `word`: those that are known, or those that `encode_new(word, ids)`
  /// appends.
  template <typename EncodeNew>
  void encode(std::string_view word, std::vector<std::int32_t>& ids, EncodeNew encode_new) {
    const std::uint64_t code = hash(word);
    if (const auto known = find(word, code); !known.empty()) {
      ids.insert(ids.end(), known.begin(), known.end());
      return;
    }
    const std::size_t first = ids.size();
    encode_new(word, ids);
    insert(word, code, std::span(ids).subspan(first));
  }

 private:
  static constexpr std::uint64_t kPlaces = 1 << 17, kMask = kPlaces - 1;
  static constexpr std::size_t kLongestWord = 64;
  struct Entry {
    std::uint32_t hash = 0, text = 0, ids = 0;
    std::uint16_t length = 0, num_ids = 0;  ///< num_ids 0: an empty place
  };
  std::vector<Entry> entries_;
  std::vector<char> text_;
  std::vector<std::int32_t> ids_;
  std::size_t used_ = 0;
};

}  // namespace trellis::trainer
