#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "trainer/files/data/text_files.h"
#include "trainer/files/data/tokenizers/tokenizer.h"

namespace trellis::trainer {

/// `trellis data build`.
struct BuildRequest {
  std::vector<std::string> inputs;  ///< files and directories, read in this order
  std::string output;               ///< prefix
  TokenizerSection tokenizer;
  std::string json_key = kJsonTextKey;
  bool append_eod = true;  ///< end each document with the tokenizer's end-of-sequence token
  int workers = 1;         ///< the result does not depend on it
  std::int64_t sequence_length = 0;  ///< of the rows of build_hf_dataset()
  bool records = false;              ///< build_hf_dataset(): a row is a record of fine-tuning
  bool keep_end = false;  ///< of a record that is longer than a row, rather than its start
};

struct BuildResult {
  std::int64_t documents = 0, tokens = 0, bytes = 0, skipped = 0;
  std::int32_t vocab_size = 0;
  std::string type;
  std::string first_skipped;
};

/// Tokenises documents on worker threads and gives them to `add` in their order. `progress` gets a
/// line now and then. Throws ConfigError for bad input.
BuildResult tokenize_documents(const BuildRequest& request,
                               const std::function<void(const std::vector<std::int32_t>&)>& add,
                               const std::function<void(const std::string&)>& progress);

/// Writes them as PREFIX.bin and PREFIX.idx. Throws ConfigError for bad input, and leaves no file
/// then.
BuildResult build_dataset(const BuildRequest& request,
                          const std::function<void(const std::string&)>& progress);

/// `trellis data inspect PREFIX`.
struct DatasetFacts {
  std::string prefix, type;
  std::int64_t sequences = 0, documents = 0, tokens = 0, shortest = 0, longest = 0, largest_id = 0;
  struct Excerpt {
    std::int64_t sequence = 0, tokens = 0;
    std::vector<std::int32_t> ids;  ///< the first ones
    std::string text;               ///< when there is a tokenizer
  };
  std::vector<Excerpt> excerpts;
  [[nodiscard]] nlohmann::json json() const;
  [[nodiscard]] std::string text() const;
};
/// `tokenizer`: null: ids are not decoded. `excerpts`: sequences to show from the start.
[[nodiscard]] DatasetFacts inspect_dataset(const std::string& prefix,
                                           const TokenizerSection* tokenizer,
                                           std::int64_t excerpts);

}  // namespace trellis::trainer
