#pragma once

#include <algorithm>
#include <string_view>

namespace trellis::analysis {

/// Calls act(word) for each of the words of a table's row, which spaces separate.
template <typename Act>
void for_each_word(std::string_view words, const Act& act) {
  while (!words.empty()) {
    const std::size_t end = std::min(words.find(' '), words.size());
    if (end > 0) act(words.substr(0, end));
    words.remove_prefix(std::min(end + 1, words.size()));
  }
}

}  // namespace trellis::analysis
