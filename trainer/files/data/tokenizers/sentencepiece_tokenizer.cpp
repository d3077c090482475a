#include "trainer/files/data/tokenizers/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include "base/error.h"
#include "base/escape.h"
#include "base/files/mapped_file.h"
#include "trainer/files/data/tokenizers/character_map.h"

namespace trellis::trainer {
namespace {

class SentencePieceTokenizer : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::string& model_file) {
    const MappedFile file(model_file);
    if (file.size() == 0) refuse(model_file, "the file is empty");
    if (const std::string problem = problem_of_character_maps(file.text()); !problem.empty())
      refuse(model_file, problem);
    if (const auto status = processor_.LoadFromSerializedProto({file.text().data(), file.size()});
        !status.ok())
      refuse(model_file, status.ToString());
  }

  std::int32_t vocab_size() const override { return processor_.GetPieceSize(); }
  std::optional<std::int32_t> eos_id() const override { return known(processor_.eos_id()); }
  std::optional<std::int32_t> bos_id() const override { return known(processor_.bos_id()); }
  std::optional<std::int32_t> pad_id() const override { return known(processor_.pad_id()); }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    std::vector<int> pieces;
    if (const auto status = processor_.Encode({text.data(), text.size()}, &pieces); !status.ok())
      throw ConfigError("SentencePiece cannot encode a text: " + status.ToString());
    ids.insert(ids.end(), pieces.begin(), pieces.end());
  }

  std::vector<TokenPlace> encode_at(std::string_view text, std::span<const std::size_t> places,
                                    std::vector<std::int32_t>& ids) override {
    const auto encoded = processor_.EncodeAsImmutableProto({text.data(), text.size()});
    const auto pieces = encoded.pieces();
    const std::size_t before = ids.size();
    for (const auto& piece : pieces) ids.push_back(static_cast<std::int32_t>(piece.id()));
    std::vector<TokenPlace> found;
    for (const std::size_t place : places) {
      TokenPlace at{before, before};
      for (const auto& piece : pieces) {
        at.ended += piece.end() <= place ? 1 : 0;
        at.begun += piece.begin() < place ? 1 : 0;
      }
      found.push_back(at);
    }
    return found;
  }
  bool is_special(std::int32_t id) const override { return processor_.IsControl(id); }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::vector<int> pieces;
    for (const std::int32_t id : ids) {
      if (id >= 0 && id < vocab_size()) pieces.push_back(id);
    }
    std::string text;
    if (const auto status = processor_.Decode(pieces, &text); !status.ok())
      throw ConfigError("SentencePiece cannot decode ids: " + status.ToString());
    return text;
  }

 private:
  [[noreturn]] static void refuse(const std::string& model_file, const std::string& why) {
    throw ConfigError(model_file + ": expected a SentencePiece model: " + terminal_line(why) +
                      "; set data.tokenizer.model to a tokenizer.model file");
  }
  static std::optional<std::int32_t> known(int id) {
    return id < 0 ? std::nullopt : std::optional<std::int32_t>(id);
  }
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& model_file) {
  return std::make_unique<SentencePieceTokenizer>(model_file);
}

}  // namespace trellis::trainer
