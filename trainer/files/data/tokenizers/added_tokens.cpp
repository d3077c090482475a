#include "trainer/files/data/tokenizers/added_tokens.h"

#include <algorithm>
#include <utility>

#include "trainer/files/data/tokenizers/unicode.h"

namespace trellis::trainer {
namespace {

/// Where the character before `place` starts.
std::size_t previous(std::string_view text, std::size_t place) {
  do {
    --place;
  } while (place > 0 && (static_cast<unsigned char>(text[place]) & 0xC0) == 0x80);
  return place;
}

bool is_space(std::string_view text, std::size_t place) {
  return char_classes()[utf8_at(text, place).code] == CharClass::kSpace;
}

bool is_word(std::string_view text, std::size_t place) {
  return is_in(CharSet::kWordCharacters, utf8_at(text, place).code);
}

bool is_separate_word(std::string_view text, TextRange range) {
  const bool touched_left = range.begin > 0 && is_word(text, previous(text, range.begin));
  const bool touched_right = range.end < text.size() && is_word(text, range.end);
  return !touched_left && !touched_right;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  std::ranges::stable_sort(tokens_, std::ranges::greater(),
                           [](const AddedToken& token) { return token.content.size(); });
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const char first = tokens_[i].content[0];
    by_first_byte_[static_cast<unsigned char>(first)].push_back(i);
    if (first_bytes_.find(first) == std::string::npos) first_bytes_ += first;
  }
}

const AddedToken* AddedTokens::token_at(std::string_view text, std::size_t place) const {
  for (const std::size_t i : by_first_byte_[static_cast<unsigned char>(text[place])]) {
    if (text.compare(place, tokens_[i].content.size(), tokens_[i].content) == 0) return &tokens_[i];
  }
  return nullptr;
}

std::size_t AddedTokens::next_candidate(std::string_view text, std::size_t place) const {
  const std::size_t found = first_bytes_.size() == 1 ? text.find(first_bytes_[0], place)
                                                     : text.find_first_of(first_bytes_, place);
  return std::min(found, text.size());
}

std::vector<TextPart> AddedTokens::split(std::string_view text) const {
  std::vector<TextPart> parts;
  std::size_t begin = 0;  // of the text that is not yet in a part
  for (std::size_t place = next_candidate(text, 0); place < text.size();
       place = next_candidate(text, place)) {
    const AddedToken* token = token_at(text, place);
    if (token == nullptr) {
      ++place;
      continue;
    }
    TextRange range{place, place + token->content.size()};
    place = range.end;
    if (token->single_word && !is_separate_word(text, range)) continue;
    while (token->lstrip && range.begin > begin && is_space(text, previous(text, range.begin)))
      range.begin = previous(text, range.begin);
    while (token->rstrip && range.end < text.size() && is_space(text, range.end))
      range.end += utf8_at(text, range.end).length;
    place = range.end;
    if (range.begin > begin) parts.push_back({{begin, range.begin}, std::nullopt});
    parts.push_back({range, token->id});
    begin = range.end;
  }
  if (begin < text.size()) parts.push_back({{begin, text.size()}, std::nullopt});
  return parts;
}

}  // namespace trellis::trainer
