#pragma once

#include "trainer/files/data/tokenizers/json_reader.h"
#include "trainer/files/data/tokenizers/tokenizer.h"

namespace trellis::trainer {

/// `post_processor` of a tokenizer.json: what it puts around one text. TemplateProcessing,
/// BertProcessing, RobertaProcessing, ByteLevel (nothing), a Sequence of them; nothing for null.
/// transformers 5 does not read add_bos_token and add_eos_token next to a tokenizer.json. Throws
/// ConfigError for others.
[[nodiscard]] SpecialAffixes read_affixes(const JsonReader& json);

}  // namespace trellis::trainer
