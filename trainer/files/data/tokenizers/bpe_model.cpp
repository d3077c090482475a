#include "trainer/files/data/tokenizers/bpe_model.h"

#include <algorithm>
#include <limits>
#include <queue>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/data/tokenizers/byte_alphabet.h"
#include "trainer/files/data/tokenizers/unicode.h"

namespace trellis::trainer {
namespace {

constexpr std::int32_t kNone = -1;
constexpr std::uint32_t kNoMerge = std::numeric_limits<std::uint32_t>::max();
/// Up to here looking at every pair again is faster than a queue.
constexpr std::size_t kFewSymbols = 24;

/// Never 0: ids are 0 or more.
std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right)) + 1;
}

std::uint64_t mix(std::uint64_t key) {
  key *= 0x9E3779B97F4A7C15;
  return key ^ key >> 29;
}

std::string fallback_token(int byte) {
  constexpr const char* kDigits = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

}  // namespace

BpeModel::BpeModel(const BpeTables& tables)
    : vocab_(tables.vocab),
      byte_level_(tables.byte_level),
      byte_fallback_(tables.byte_fallback),
      fuse_unk_(tables.fuse_unk),
      ignore_merges_(tables.ignore_merges),
      prefix_(tables.prefix),
      suffix_(tables.suffix) {
  if (vocab_.empty()) throw ConfigError(tables.file + ": the vocabulary is empty");
  std::int32_t largest = 0;
  for (const auto& [token, id] : vocab_) largest = std::max(largest, id);
  if (static_cast<std::size_t>(largest) > 16 * vocab_.size() + (1 << 16)) {
    throw ConfigError(tables.file + ": the vocabulary has " + std::to_string(vocab_.size()) +
                      " tokens and an id " + std::to_string(largest) +
                      ": expected ids without large gaps");
  }
  tokens_.resize(static_cast<std::size_t>(largest) + 1);
  for (const auto& [token, id] : vocab_) {
    std::string& place = tokens_[static_cast<std::size_t>(id)];
    if (!place.empty())
      throw ConfigError(tables.file + ": tokens \"" + std::min(place, token) + "\" and \"" +
                        std::max(place, token) + "\" have one id, " + std::to_string(id));
    place = token;
  }
  if (tables.unk_token) {
    const auto unk = id_of(*tables.unk_token);
    if (!unk)
      throw ConfigError(tables.file + ": model.unk_token: \"" + *tables.unk_token +
                        "\" is not in the vocabulary");
    unk_ = *unk;
  }
  find_byte_ids();
  add_merges(tables);
  if (!ignore_merges_) return;
  for (const auto& [token, id] : vocab_) {
    if (!byte_level_) {
      whole_words_.emplace(token, id);
    } else if (auto bytes = bytes_of_alphabet(token)) {
      whole_words_.emplace(std::move(*bytes), id);
    }
  }
}

void BpeModel::find_byte_ids() {
  for (int byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] =
        id_of(byte_level_ ? byte_character(static_cast<unsigned char>(byte)) : fallback_token(byte))
            .value_or(kNone);
  }
}

void BpeModel::add_merges(const BpeTables& tables) {
  std::size_t places = 16;
  while (places < 2 * tables.merges.size()) places *= 2;
  merges_.assign(places, {});
  merge_mask_ = places - 1;
  std::uint32_t rank = 0;
  for (const auto& [left, right] : tables.merges) {
    const auto named = [&](const std::string& token) {
      if (const auto id = id_of(token)) return *id;
      throw ConfigError(tables.file + ": merge " + std::to_string(rank) + " (\"" +
                        terminal_line(left) + "\" \"" + terminal_line(right) + "\"): the token \"" +
                        terminal_line(token) + "\" is not in the vocabulary");
    };
    const std::int32_t left_id = named(left), right_id = named(right),
                       result = named(left + right.substr(std::min(prefix_.size(), right.size())));
    const std::uint64_t key = key_of(left_id, right_id);
    std::uint64_t place = mix(key) & merge_mask_;
    while (merges_[place].first != 0 && merges_[place].first != key)
      place = (place + 1) & merge_mask_;
    merges_[place] = {
        key,
        {rank++,
         result}};  // a pair that occurs twice has the later rank, as in Hugging Face's table
  }
}

std::optional<std::int32_t> BpeModel::id_of(const std::string& token) const {
  const auto found = vocab_.find(token);
  return found == vocab_.end() ? std::nullopt : std::optional<std::int32_t>(found->second);
}

const BpeModel::Merge* BpeModel::find_merge(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = key_of(left, right);
  for (std::uint64_t place = mix(key) & merge_mask_;; place = (place + 1) & merge_mask_) {
    if (merges_[place].first == key) return &merges_[place].second;
    if (merges_[place].first == 0) return nullptr;
  }
}

bool BpeModel::can_cut_before(std::string_view mark) const {
  return std::ranges::none_of(merges_, [&](const auto& entry) {
    if (entry.first == 0) return false;
    const std::string& token = tokens_[static_cast<std::size_t>(entry.second.result)];
    std::size_t marks = 0;  // at the start: a run of marks is one word
    while (token.compare(marks, mark.size(), mark) == 0) marks += mark.size();
    return token.find(mark, marks) != std::string::npos;
  });
}

void BpeModel::encode_word(std::string_view word, std::vector<std::int32_t>& ids) {
  cache_.encode(word, ids, [this](std::string_view fresh, std::vector<std::int32_t>& result) {
    encode_new_word(fresh, result);
  });
}

void BpeModel::encode_new_word(std::string_view word, std::vector<std::int32_t>& ids) {
  if (ignore_merges_) {
    if (const auto whole = whole_words_.find(std::string(word)); whole != whole_words_.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  split(word);
  if (symbols_.size() <= kFewSymbols) {
    merge_few();
  } else {
    merge_many();
  }
  ids.insert(ids.end(), symbols_.begin(), symbols_.end());
}

void BpeModel::split(std::string_view word) {
  symbols_.clear();
  if (!prefix_.empty() || !suffix_.empty()) return split_with_affixes(word);
  if (!byte_level_) return split_characters(word);
  bool unknown_before = false;
  for (const char c : word) {
    const std::int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    const std::int32_t known = id == kNone ? unk_ : id;
    if (known != kNone && !(id == kNone && unknown_before && fuse_unk_)) symbols_.push_back(known);
    unknown_before = id == kNone;
  }
}

void BpeModel::split_characters(std::string_view word) {
  bool unknown_before = false;
  for (std::size_t i = 0; i < word.size();) {
    const std::string character(word.substr(i, utf8_at(word, i).length));
    i += character.size();
    if (const auto id = id_of(character)) {
      symbols_.push_back(*id);
      unknown_before = false;
      continue;
    }
    add_unknown(character, unknown_before);
  }
}

void BpeModel::add_unknown(std::string_view symbol, bool& unknown_before) {
  const bool in_bytes = byte_fallback_ && std::ranges::all_of(symbol, [&](char c) {
                          return byte_ids_[static_cast<unsigned char>(c)] != kNone;
                        });
  if (in_bytes) {
    for (const char c : symbol) symbols_.push_back(byte_ids_[static_cast<unsigned char>(c)]);
  } else if (unk_ != kNone && !(unknown_before && fuse_unk_)) {
    symbols_.push_back(unk_);
  }
  unknown_before = !in_bytes;
}

/// Symbols have the prefix unless they begin the word, and the suffix where they end it.
void BpeModel::split_with_affixes(std::string_view word) {
  bool unknown_before = false;
  for (std::size_t i = 0; i < word.size();) {
    const std::size_t size = byte_level_ ? 1 : utf8_at(word, i).length;
    std::string symbol(i > 0 ? prefix_ : "");
    symbol += byte_level_ ? byte_character(static_cast<unsigned char>(word[i]))
                          : std::string(word.substr(i, size));
    i += size;
    if (i == word.size()) symbol += suffix_;
    if (const auto id = id_of(symbol)) {
      symbols_.push_back(*id);
      unknown_before = false;
    } else {
      add_unknown(symbol, unknown_before);
    }
  }
}

std::string BpeModel::text_in_word(std::int32_t id) const {
  if (id == unk_) return "";
  std::string text = token(id);
  if (const auto byte = byte_fallback_ ? byte_of_fallback(text) : std::nullopt)
    return std::string(1, *byte);
  if (!prefix_.empty() && text.starts_with(prefix_)) text.erase(0, prefix_.size());
  if (!suffix_.empty() && text.ends_with(suffix_)) text.erase(text.size() - suffix_.size());
  return byte_level_ ? bytes_of_alphabet(text).value_or("") : text;
}

void BpeModel::merge_few() {
  std::uint32_t ranks[kFewSymbols];
  std::size_t count = symbols_.size();
  const auto rank_at = [&](std::size_t i) {
    const Merge* merge = i + 1 < count ? find_merge(symbols_[i], symbols_[i + 1]) : nullptr;
    return merge == nullptr ? kNoMerge : merge->rank;
  };
  for (std::size_t i = 0; i < count; ++i) ranks[i] = rank_at(i);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNoMerge) break;
    symbols_[best] = find_merge(symbols_[best], symbols_[best + 1])->result;
    std::copy(symbols_.begin() + static_cast<std::ptrdiff_t>(best) + 2,
              symbols_.begin() + static_cast<std::ptrdiff_t>(count),
              symbols_.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    std::copy(ranks + best + 2, ranks + count, ranks + best + 1);
    --count;
    ranks[best] = rank_at(best);
    if (best > 0) ranks[best - 1] = rank_at(best - 1);
  }
  symbols_.resize(count);
}

void BpeModel::merge_many() {
  std::vector<Symbol> list;
  const auto count = static_cast<std::int32_t>(symbols_.size());
  for (std::int32_t i = 0; i < count; ++i)
    list.push_back({symbols_[static_cast<std::size_t>(i)], i - 1, i + 1 < count ? i + 1 : kNone});
  struct Candidate {
    std::uint32_t rank;
    std::int32_t left;               ///< place in the list
    std::int32_t left_id, right_id;  ///< when it was seen; another one since: out of date
    bool operator>(const Candidate& other) const {
      return std::pair(rank, left) > std::pair(other.rank, other.left);
    }
  };
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto at = [&](std::int32_t place) -> Symbol& {
    return list[static_cast<std::size_t>(place)];
  };
  const auto offer = [&](std::int32_t left) {
    if (left == kNone || at(left).next == kNone) return;
    const std::int32_t right_id = at(at(left).next).id;
    if (const Merge* merge = find_merge(at(left).id, right_id))
      queue.push({merge->rank, left, at(left).id, right_id});
  };
  for (std::int32_t i = 0; i + 1 < count; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate candidate = queue.top();
    queue.pop();
    Symbol& left = at(candidate.left);
    if (left.id != candidate.left_id || left.next == kNone ||
        at(left.next).id != candidate.right_id)
      continue;
    Symbol& right = at(left.next);
    left.id = find_merge(candidate.left_id, candidate.right_id)->result;
    left.next = right.next;
    right.id = kNone;
    if (left.next != kNone) at(left.next).previous = candidate.left;
    offer(left.previous);
    offer(candidate.left);
  }
  symbols_.clear();
  for (std::int32_t place = 0; place != kNone; place = at(place).next)
    symbols_.push_back(at(place).id);
}

}  // namespace trellis::trainer
