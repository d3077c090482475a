#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/files/data/tokenizers/json_reader.h"
#include "trainer/files/data/tokenizers/regex.h"
#include "trainer/files/data/tokenizers/word_scanner.h"

namespace trellis::trainer {

/// `pre_tokenizer` of a tokenizer.json: cuts a text into the words that are encoded one by one.
/// ByteLevel, Split, Metaspace, Digits, Whitespace, WhitespaceSplit, CharDelimiterSplit,
/// Punctuation, BertPreTokenizer, UnicodeScripts, or a Sequence of them; ConfigError for others.
/// Not for several threads at a time.
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

  /// A word, whether it begins the document, and where it is in the text.
  struct Piece {
    std::string_view text;
    bool at_start = false;
    std::size_t begin = 0;                   ///< of its first byte
    const std::uint32_t* origins = nullptr;  ///< of each byte of a changed word; null: as it was
    [[nodiscard]] std::size_t origin(std::size_t byte) const {
      return origins != nullptr ? origins[byte] : begin + byte;
    }
    [[nodiscard]] Piece part(TextRange range) const {
      return {text.substr(range.begin, range.end - range.begin), at_start && range.begin == 0,
              begin + range.begin, origins != nullptr ? origins + range.begin : nullptr};
    }
  };
  /// Calls body(piece) with the words in order. `at_start`: the text begins the document.
  /// `origins`: pieces know where changed words were. Words are valid during the call.
  template <typename Body>
  void for_each_word(std::string_view text, bool at_start, bool origins, Body body) {
    if (only_scanner_) {
      for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = only_scanner_(text, begin);
        body(Piece{text.substr(begin, end - begin), false, begin});
        begin = end;
      }
      return;
    }
    for (const Piece& word : words_of(text, at_start, origins)) body(word);
  }

  /// Texts that a step had to change.
  struct Changed {
    std::deque<std::string> texts;
    std::deque<std::vector<std::uint32_t>> origins;
  };
  /// Output of a step: pieces in order, and the texts that it changed.
  struct Output {
    std::vector<Piece> pieces;
    Changed* changed;
    bool origins;  ///< are asked for
    void add(const Piece& piece) {
      if (!piece.text.empty()) pieces.push_back(piece);
    }
    /// `of`, with `front` before it and each byte `from` replaced.
    [[nodiscard]] Piece replaced(const Piece& of, std::string_view front, char from,
                                 std::string_view to) const;
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
  [[nodiscard]] std::vector<Piece> words_of(std::string_view text, bool at_start, bool origins);

  std::vector<std::unique_ptr<Step>> steps_;
  WordEnd only_scanner_ = nullptr;  ///< the one step there is, when it is a known pattern
  bool byte_level_ = false;
  std::string mark_;
  Changed changed_;
};

}  // namespace trellis::trainer
