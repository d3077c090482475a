#include "trainer/files/data/tokenizers/word_cache.h"

#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace trellis::trainer {

WordCache::WordCache() : short_(kShortPlaces), long_(kLongPlaces) {}

std::span<const std::int32_t> WordCache::find_long(std::string_view word) const {
  const std::uint64_t hash = XXH3_64bits(word.data(), word.size());
  for (std::uint64_t place = hash & (kLongPlaces - 1);; place = (place + 1) & (kLongPlaces - 1)) {
    const LongEntry& entry = long_[place];
    if (entry.num_ids == 0) return {};
    if (entry.hash == static_cast<std::uint32_t>(hash >> 32) &&
        word == std::string_view(text_.data() + entry.text, entry.length))
      return {ids_.data() + entry.ids, entry.num_ids};
  }
}

void WordCache::insert(std::string_view word, const ShortWord& key,
                       std::span<const std::int32_t> ids) {
  if (word.size() > kLongestWord || ids.empty()) return;
  if (key.length == 0 || ids.size() > kFewIds) return insert_long(word, ids);
  if (short_used_ >= kShortPlaces / 2) {
    short_.assign(kShortPlaces, {});
    short_used_ = 0;
  }
  std::uint64_t place = key.place();
  while (short_[place].num_ids != 0) place = (place + 1) & (kShortPlaces - 1);
  ShortEntry& entry = short_[place];
  entry.low = key.low;
  entry.high = key.high;
  std::ranges::copy(ids, entry.ids);
  entry.length = key.length;
  entry.num_ids = static_cast<std::uint8_t>(ids.size());
  ++short_used_;
}

void WordCache::insert_long(std::string_view word, std::span<const std::int32_t> ids) {
  if (long_used_ >= kLongPlaces / 2) {
    long_.assign(kLongPlaces, {});
    text_.clear();
    ids_.clear();
    long_used_ = 0;
  }
  const std::uint64_t hash = XXH3_64bits(word.data(), word.size());
  std::uint64_t place = hash & (kLongPlaces - 1);
  while (long_[place].num_ids != 0) place = (place + 1) & (kLongPlaces - 1);
  long_[place] = {static_cast<std::uint32_t>(hash >> 32), static_cast<std::uint32_t>(text_.size()),
                  static_cast<std::uint32_t>(ids_.size()), static_cast<std::uint16_t>(word.size()),
                  static_cast<std::uint16_t>(ids.size())};
  text_.insert(text_.end(), word.begin(), word.end());
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++long_used_;
}

}  // namespace trellis::trainer
