#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace trellis::trainer {

/// Bytes of a text that the model learns to say.
struct AnswerRange {
  std::size_t begin = 0, end = 0;
  /// Where what is said ends; with `ends_with_special` the first special token from there on is the
  /// last one that is learned, if there is one before `end`.
  std::size_t said = 0;
  bool ends_with_special = false;
};

/// A record as text: what the model reads, and which of it are answers. The prompt comes first.
struct AnsweredText {
  std::string text;
  std::vector<AnswerRange> answers;
  bool is_chat = false;  ///< a template wrote the special tokens; else they are to be added
};

}  // namespace trellis::trainer
