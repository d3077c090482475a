#pragma once

namespace trellis::trainer {

/// Byte-level tokens: byte b of a text has id b; one more id ends a document.
inline constexpr int kEndOfDocument = 256;
inline constexpr int kByteVocabularySize = 257;

}  // namespace trellis::trainer
