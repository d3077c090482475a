#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trellis::trainer {

class Fields;

/// How this version treats a key of the NxDT and NeMo schemas.
enum class KeyUse {
  kSupported,  ///< its section's reader reads it
  kSection,    ///< a mapping whose own keys are in the table
  kIgnored,    ///< any value: no effect here, for the reason that `trellis validate` prints
  kLater,   ///< legal, but not supported: any but the neutral values joins RunConfig::unsupported
  kNeutral  ///< not supported, here or in NxDT: any but the neutral values is a problem
};

/// Keys of one section that are treated alike. The schema is data: adding a feature moves its keys
/// to another row.
struct KeyGroup {
  std::string_view section;  ///< dotted path; "" = top level
  KeyUse use;
  std::string_view keys;  ///< separated by spaces
  std::string_view neutral =
      "";  ///< separated by '|', the preferred one first; for kLater and kNeutral
  std::string_view why = "";  ///< kIgnored: why it has no effect; kLater and kNeutral: what is
                              ///< missing, or what to use instead
  std::string_view origin = "NxDT";  ///< whose key it is: NxDT (with NeMo), or Trellis
  /// Lists more keys: those of this origin that the section's reader visits.
  void (*fields)(Fields& fields) = nullptr;
};

/// The origin of keys that NxDT does not have.
inline constexpr std::string_view kOwnKey = "Trellis";

struct KnownKey {
  std::string key;
  const KeyGroup* group;
};

/// The table. It lists what the sections' visitors list, so it lies above them, in
/// sections/key_table.cpp.
[[nodiscard]] std::span<const KeyGroup> key_groups();
/// Every known key of a section, in table order.
[[nodiscard]] std::vector<KnownKey> known_keys_of(std::string_view section);
/// Every section in which `key` has an effect ("the top level" for the root), in table order.
[[nodiscard]] std::vector<std::string> sections_that_know(std::string_view key);
/// The parts of a row's `keys` or `neutral`; empty ones are left out.
[[nodiscard]] std::vector<std::string> split_texts(std::string_view text, char separator);
/// True if a scalar's text represents one of `neutral`: numbers compare as numbers, booleans and
/// nulls in every YAML spelling.
[[nodiscard]] bool is_neutral(std::string_view scalar, std::string_view neutral);

}  // namespace trellis::trainer
