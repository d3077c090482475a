#pragma once

#include <memory>
#include <string>

#include "trainer/files/data/tokenizers/tokenizer.h"

namespace trellis::trainer {

/// A Hugging Face tokenizer.json with a BPE model, or a directory that holds one. Special tokens
/// are named by tokenizer_config.json or special_tokens_map.json next to it.
[[nodiscard]] std::unique_ptr<Tokenizer> make_hf_tokenizer(const std::string& path);

/// A file of tiktoken, cut into words as Llama 3 and GPT-4 do it. `type`: "llama3" (its special
/// tokens follow the others), "cl100k_base" (with <|endoftext|>), or "" without special tokens.
[[nodiscard]] std::unique_ptr<Tokenizer> make_tiktoken_tokenizer(const std::string& file,
                                                                 const std::string& type);

/// GPT-2's vocab.json and merges.txt; <|endoftext|> begins and ends documents.
[[nodiscard]] std::unique_ptr<Tokenizer> make_gpt2_tokenizer(const std::string& vocab_file,
                                                             const std::string& merge_file);

}  // namespace trellis::trainer
