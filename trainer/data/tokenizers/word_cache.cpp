#include "trainer/data/tokenizers/word_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace trellis::trainer {

WordCache::WordCache() : entries_(kPlaces) {}

std::uint64_t WordCache::hash(std::string_view word) {
  return XXH3_64bits(word.data(), word.size());
}

void WordCache::insert(std::string_view word, std::uint64_t hash,
                       std::span<const std::int32_t> ids) {
  if (word.size() > kLongestWord || ids.empty()) return;
  if (used_ >= kPlaces / 2) {
    entries_.assign(kPlaces, {});
    text_.clear();
    ids_.clear();
    used_ = 0;
  }
  std::uint64_t place = hash & kMask;
  while (entries_[place].num_ids != 0) place = (place + 1) & kMask;
  entries_[place] = {
      static_cast<std::uint32_t>(hash >> 32), static_cast<std::uint32_t>(text_.size()),
      static_cast<std::uint32_t>(ids_.size()), static_cast<std::uint16_t>(word.size()),
      static_cast<std::uint16_t>(ids.size())};
  text_.insert(text_.end(), word.begin(), word.end());
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++used_;
}

}  // namespace trellis::trainer
