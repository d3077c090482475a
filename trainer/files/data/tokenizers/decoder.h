#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trainer/files/data/tokenizers/json_reader.h"

namespace trellis::trainer {

/// `decoder` of a tokenizer.json: tokens → text. ByteLevel, ByteFallback, Metaspace, Replace,
/// Strip, Fuse, WordPiece, BPEDecoder, or a Sequence of them; ConfigError for others. Bytes that
/// are no UTF-8 are kept by ByteLevel, so that encoding and decoding give back every text.
class TokenDecoder {
 public:
  explicit TokenDecoder(const JsonReader& json);
  [[nodiscard]] std::string decode(std::vector<std::string> tokens) const;

 private:
  void add(const JsonReader& json);
  using Step = std::function<void(std::vector<std::string>&)>;
  std::vector<Step> steps_;
  bool joined_by_space_ = false;  ///< without a decoder
};

}  // namespace trellis::trainer
