#pragma once

#include <string>

#include "trainer/config/reader/known_keys.h"

namespace trellis::analysis {

/// Where a dotted key leads in this program's schema (trainer/config/reader/known_keys.h).
struct SchemaKey {
  const trainer::KeyGroup* group = nullptr;  ///< null: no section knows it
  std::string unknown;                       ///< then: which section, and the nearest name of it
};
/// A key under one whose value is read as a whole belongs to that one's group.
[[nodiscard]] SchemaKey schema_key(const std::string& key);

/// A section whose keys the schema knows one by one.
[[nodiscard]] bool is_schema_section(const std::string& key);

}  // namespace trellis::analysis
