#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/data/tokenizers/piece_models.h"
#include "trainer/files/data/tokenizers/vocabulary.h"

namespace trellis::trainer {
namespace {

class WordLevel : public WordModel {
 public:
  explicit WordLevel(const JsonReader& model)
      : vocabulary_(model["vocab"]),
        unknown_(vocabulary_.id_of(model["unk_token"].text_or("<unk>"))),
        where_(model["unk_token"].where()) {}

  void encode_word(std::string_view word, std::vector<std::int32_t>& ids) override {
    const auto id = vocabulary_.id_of(std::string(word));
    if (!id && !unknown_)
      throw ConfigError(where_ + ": expected a token of the vocabulary, for words such as \"" +
                        terminal_line(word.substr(0, 60)) + "\", which it does not have");
    ids.push_back(id ? *id : *unknown_);
  }
  std::int32_t vocab_size() const override { return vocabulary_.size(); }
  const std::string& token(std::int32_t id) const override { return vocabulary_.token(id); }
  std::optional<std::int32_t> id_of(const std::string& token) const override {
    return vocabulary_.id_of(token);
  }
  std::string text_in_word(std::int32_t id) const override {
    return id == unknown_ ? "" : token(id);
  }

 private:
  Vocabulary vocabulary_;
  std::optional<std::int32_t> unknown_;
  std::string where_;
};

}  // namespace

std::unique_ptr<WordModel> make_word_level(const JsonReader& model) {
  return std::make_unique<WordLevel>(model);
}

}  // namespace trellis::trainer
