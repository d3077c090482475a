#include "trainer/evaluation/text_metrics.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

namespace trellis::trainer {
namespace {

using Words = std::vector<std::string>;

std::string stripped(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n\f\v";
  const std::size_t first = text.find_first_not_of(kSpace);
  return first == std::string::npos ? ""
                                    : text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

Words words_of(const std::string& text) {
  Words words;
  bool in_word = false;
  for (const char letter : text) {
    const bool upper = letter >= 'A' && letter <= 'Z';
    const char lower = upper ? static_cast<char>(letter - 'A' + 'a') : letter;
    const bool of_word = (lower >= 'a' && lower <= 'z') || (lower >= '0' && lower <= '9');
    if (of_word && !in_word) words.emplace_back();
    if (of_word) words.back() += lower;
    in_word = of_word;
  }
  return words;
}

double f1(std::int64_t shared, std::size_t predicted, std::size_t wanted) {
  if (shared == 0) return 0;
  const double precision = static_cast<double>(shared) / static_cast<double>(predicted),
               recall = static_cast<double>(shared) / static_cast<double>(wanted);
  return 2 * precision * recall / (precision + recall);
}

std::map<Words, std::int64_t> runs_of(const Words& words, std::size_t length) {
  std::map<Words, std::int64_t> counts;
  for (std::size_t i = 0; i + length <= words.size(); ++i) {
    const auto first = words.begin() + static_cast<std::ptrdiff_t>(i);
    ++counts[Words(first, first + static_cast<std::ptrdiff_t>(length))];
  }
  return counts;
}

double rouge_n(const Words& prediction, const Words& label, std::size_t length) {
  if (prediction.size() < length || label.size() < length) return 0;
  const auto wanted = runs_of(label, length);
  std::int64_t shared = 0;
  for (const auto& [run, count] : runs_of(prediction, length)) {
    const auto found = wanted.find(run);
    if (found != wanted.end()) shared += std::min(count, found->second);
  }
  return f1(shared, prediction.size() + 1 - length, label.size() + 1 - length);
}

std::int64_t longest_common_subsequence(const Words& a, const Words& b) {
  std::vector<std::int64_t> row(b.size() + 1), above;
  for (const std::string& word : a) {
    above = row;
    for (std::size_t i = 0; i < b.size(); ++i)
      row[i + 1] = word == b[i] ? above[i] + 1 : std::max(above[i + 1], row[i]);
  }
  return row.back();
}

}  // namespace

bool exact_match(const std::string& prediction, const std::string& label) {
  return stripped(prediction) == stripped(label);
}

Rouge rouge(const std::string& prediction, const std::string& label) {
  const Words predicted = words_of(prediction), wanted = words_of(label);
  return {rouge_n(predicted, wanted, 1), rouge_n(predicted, wanted, 2),
          f1(longest_common_subsequence(predicted, wanted), predicted.size(), wanted.size())};
}

}  // namespace trellis::trainer
