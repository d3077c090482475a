#pragma once

#include <memory>

#include "trainer/files/data/tokenizers/json_reader.h"
#include "trainer/files/data/tokenizers/word_model.h"

namespace trellis::trainer {

/// `model` of a tokenizer.json of type WordPiece: the longest token that begins the word, then the
/// longest with the prefix of continuations that begins the rest. A word that does not come out, or
/// has too many characters, is unk_token. Throws ConfigError for what is not so.
[[nodiscard]] std::unique_ptr<WordModel> make_word_piece(const JsonReader& model);

/// The same of type WordLevel: a word is a token, or unk_token.
[[nodiscard]] std::unique_ptr<WordModel> make_word_level(const JsonReader& model);

/// The same of type Unigram: the cut into pieces with the largest sum of scores. Characters without
/// a piece are unk_id, neighbours as one, or with byte_fallback their bytes.
[[nodiscard]] std::unique_ptr<WordModel> make_unigram(const JsonReader& model);

}  // namespace trellis::trainer
