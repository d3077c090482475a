#pragma once

#include <memory>

#include "trainer/config/run_config.h"
#include "trainer/files/data/tokenizers/tokenizer.h"

namespace trellis::trainer {

/// Makes a tokenizer by its `library` and the settings that this needs. Throws ConfigError when a
/// file is missing, corrupt, or asks for something that is not supported.
///   byte-level     a byte is its id, 256 ends a document
///   huggingface    type: tokenizer.json or a directory that holds it (and tokenizer_config.json
///                  with the special tokens)
///   megatron       type GPT2BPETokenizer: vocab_file, merge_file;
///                  type GPTSentencePieceTokenizer: model
///   sentencepiece  model
///   tiktoken       model; type llama3 or cl100k_base, for their special tokens
[[nodiscard]] std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerSection& section);

}  // namespace trellis::trainer
