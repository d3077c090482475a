#pragma once

#include <map>
#include <string>
#include <vector>

#include "trainer/config/reader/known_keys.h"

namespace trellis::trainer {

/// One key of the schema, as the reference lists it.
struct KeyDoc {
  std::string section;  ///< dotted path; "" = top level
  std::string key;
  KeyUse use;
  std::string type;           ///< "integer ≥ 1"; "" unless the key acts
  std::string default_value;  ///< as YAML, "required", or "megatron: …; hf: …" by model_source
  std::string origin;         ///< NxDT or Trellis
  std::string neutral;        ///< accepted values of a key that does not act; "": any
  std::string why;            ///< why a key does not act
};

/// Every known key in the order of the table. Types and defaults are those that the readers of the
/// sections ask for: they are run on small configurations, and their questions are kept.
[[nodiscard]] std::vector<KeyDoc> document_keys();

/// "acts", "section", "no effect", "later" or "refused".
[[nodiscard]] std::string_view name_of(KeyUse use);

}  // namespace trellis::trainer
