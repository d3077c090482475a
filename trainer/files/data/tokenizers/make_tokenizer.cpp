#include "trainer/files/data/tokenizers/make_tokenizer.h"

#include "base/error.h"
#include "trainer/files/data/tokenizers/byte_tokenizer.h"
#include "trainer/files/data/tokenizers/hf_tokenizer.h"
#include "trainer/files/data/tokenizers/sentencepiece_tokenizer.h"

namespace trellis::trainer {
namespace {

const std::string& required(const std::string& value, const std::string& key,
                            const std::string& of) {
  if (value.empty()) throw ConfigError("data.tokenizer." + key + ": missing: " + of + " needs it");
  return value;
}

std::unique_ptr<Tokenizer> make_megatron_tokenizer(const TokenizerSection& section) {
  if (section.type == "GPT2BPETokenizer") {
    return make_gpt2_tokenizer(required(section.vocab_file, "vocab_file", section.type),
                               required(section.merge_file, "merge_file", section.type));
  }
  if (section.type == "GPTSentencePieceTokenizer")
    return make_sentencepiece_tokenizer(required(section.model, "model", section.type));
  throw ConfigError(
      "data.tokenizer.type: expected GPT2BPETokenizer or GPTSentencePieceTokenizer with library "
      "megatron, got \"" +
      section.type + "\"");
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerSection& section) {
  if (section.library == "byte-level") return make_byte_tokenizer();
  if (section.library == "huggingface")
    return make_hf_tokenizer(required(section.type, "type", "library huggingface"));
  if (section.library == "megatron") return make_megatron_tokenizer(section);
  if (section.library == "sentencepiece")
    return make_sentencepiece_tokenizer(required(section.model, "model", "library sentencepiece"));
  if (section.library == "tiktoken")
    return make_tiktoken_tokenizer(required(section.model, "model", "library tiktoken"),
                                   section.type);
  throw ConfigError(
      "data.tokenizer.library: expected byte-level, huggingface, megatron, sentencepiece or "
      "tiktoken, got \"" +
      section.library + "\"");
}

}  // namespace trellis::trainer
