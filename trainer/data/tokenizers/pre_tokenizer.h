#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/tokenizers/json_reader.h"
#include "trainer/data/tokenizers/regex.h"
#include "trainer/data/tokenizers/word_scanner.h"

namespace trellis::trainer {

/// `pre_tokenizer` of a tokenizer.json: cuts a text into the words that are encoded one by one.
/// ByteLevel, Split, Metaspace, Digits, WhitespaceSplit, or a Sequence of them; ConfigError for
/// others. Not for several threads at a time.
class PreTokenizer {
 public:
  explicit PreTokenizer(const JsonReader& json);
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;

  /// Tokens are written in GPT-2's alphabet.
  [[nodiscard]] bool byte_level() const { return byte_level_; }
  /// Words may also be cut before each run of this text; exact when the merges allow it
  /// (BpeModel::can_cut_before).
  void cut_before(std::string mark) { mark_ = std::move(mark); }
  /// Calls body(word) in order. `at_start`: the text begins the document. Words are valid during
  /// the call.
  template <typename Body>
  void for_each_word(std::string_view text, bool at_start, Body body) {
    if (only_scanner_) {
      for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = only_scanner_(text, begin);
        body(text.substr(begin, end - begin));
        begin = end;
      }
      return;
    }
    for (const std::string_view word : words_of(text, at_start)) body(word);
  }

  /// A word, and whether it begins the document.
  struct Piece {
    std::string_view text;
    bool at_start = false;
  };
  /// What a step writes to: pieces in order, and the texts that it had to change.
  struct Output {
    std::vector<Piece> pieces;
    std::deque<std::string>* changed;
    void add(std::string_view text, bool at_start) {
      if (!text.empty()) pieces.push_back({text, at_start});
    }
  };
  class Step {
   public:
    virtual ~Step() = default;
    virtual void apply(const Piece& piece, Output& output) const = 0;
  };

 private:
  void add(const JsonReader& json);
  void add_byte_level(const JsonReader& json);
  void add_split(const JsonReader& json);
  [[nodiscard]] std::vector<std::string_view> words_of(std::string_view text, bool at_start);

  std::vector<std::unique_ptr<Step>> steps_;
  WordEnd only_scanner_ = nullptr;  ///< the one step there is, when it is a known pattern
  bool byte_level_ = false;
  std::string mark_;
  std::deque<std::string> changed_;
};

}  // namespace trellis::trainer
