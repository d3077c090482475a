#include "trainer/files/data/tokenizers/byte_tokenizer.h"

#include "trainer/config/sections/byte_vocabulary.h"

namespace trellis::trainer {
namespace {

class ByteTokenizer : public Tokenizer {
 public:
  std::int32_t vocab_size() const override { return kByteVocabularySize; }
  std::optional<std::int32_t> eos_id() const override { return kEndOfDocument; }
  std::optional<std::int32_t> bos_id() const override { return std::nullopt; }
  std::optional<std::int32_t> pad_id() const override { return std::nullopt; }
  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
    ids.insert(ids.end(), bytes, bytes + text.size());
  }
  std::vector<TokenPlace> encode_at(std::string_view text, std::span<const std::size_t> places,
                                    std::vector<std::int32_t>& ids) override {
    std::vector<TokenPlace> found;
    for (const std::size_t place : places)
      found.push_back({ids.size() + place, ids.size() + place});
    encode(text, ids);
    return found;
  }
  bool is_special(std::int32_t id) const override { return id == kEndOfDocument; }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      if (id >= 0 && id < kEndOfDocument) text += static_cast<char>(id);
    }
    return text;
  }
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

}  // namespace trellis::trainer
