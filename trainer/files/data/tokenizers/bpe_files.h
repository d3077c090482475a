#pragma once

#include <string>

#include "trainer/files/data/tokenizers/bpe_model.h"
#include "trainer/files/data/tokenizers/json_reader.h"

namespace trellis::trainer {

/// `model` of a tokenizer.json, which must be BPE without dropout.
[[nodiscard]] BpeTables read_bpe_model(const JsonReader& model, bool byte_level);
/// A vocabulary {"token": id, …}.
void read_vocabulary(const JsonReader& json, BpeTables& tables);
/// merges.txt: one "left right" in each line; a first line "#version: …" is left out.
void read_merge_file(const std::string& file, BpeTables& tables);

}  // namespace trellis::trainer
