#include "trainer/files/data/tokenizers/character_map.h"

#include <cstdint>
#include <cstring>

#include "base/json/protobuf_fields.h"

namespace trellis::trainer {
namespace {

// sentencepiece_model.proto
constexpr std::uint64_t kNormalizerSpec = 3, kDenormalizerSpec = 5, kPrecompiledCharsmap = 2;

/// A unit of a Darts double array. A node's children are in one block of 256 units, at the node's
/// place ^ offset ^ byte; its value, when it has one, at place ^ offset.
class Unit {
 public:
  explicit Unit(std::uint32_t bits) : bits_(bits) {}
  [[nodiscard]] bool is_value() const { return (bits_ >> 31) != 0; }
  [[nodiscard]] bool has_value() const { return (bits_ >> 8 & 1) != 0; }
  [[nodiscard]] std::uint32_t value() const { return bits_ & 0x7FFFFFFFU; }
  [[nodiscard]] std::uint32_t offset() const { return (bits_ >> 10) << ((bits_ & (1U << 9)) >> 6); }

 private:
  std::uint32_t bits_;
};

/// The size of a trie in bytes, the trie, then the texts that characters become, to which its
/// values point.
std::string problem_of(std::string_view map) {
  std::uint32_t trie_bytes = 0;
  if (map.size() <= sizeof trie_bytes) return "it is cut";
  std::memcpy(&trie_bytes, map.data(), sizeof trie_bytes);
  map.remove_prefix(sizeof trie_bytes);
  if (trie_bytes >= map.size() || trie_bytes % sizeof(Unit) != 0)
    return "its trie has " + std::to_string(trie_bytes) + " bytes, of " +
           std::to_string(map.size());
  const std::size_t units = trie_bytes / sizeof(Unit), texts = map.size() - trie_bytes;
  const auto unit_at = [&](std::size_t place) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, map.data() + place * sizeof bits, sizeof bits);
    return Unit(bits);
  };
  if (units == 0) return "its trie is empty";
  for (std::size_t place = 0; place < units; ++place) {
    const Unit unit = unit_at(place);
    if (unit.is_value() && place != 0) continue;
    const std::size_t children = place ^ unit.offset();
    if ((children | 0xFF) >= units)
      return "unit " + std::to_string(place) + " of its trie points to unit " +
             std::to_string(children) + " of " + std::to_string(units);
    if (unit.has_value() && unit_at(children).value() >= texts) {
      return "unit " + std::to_string(children) + " of its trie points to byte " +
             std::to_string(unit_at(children).value()) + " of " + std::to_string(texts);
    }
  }
  return "";
}

std::string problem_of_spec(std::string_view spec) {
  while (!spec.empty()) {
    const auto field = take_field(spec);
    if (!field) return "it is malformed";
    if (field->number != kPrecompiledCharsmap || !field->is_bytes || field->bytes.empty()) continue;
    if (auto problem = problem_of(field->bytes); !problem.empty()) return problem;
  }
  return "";
}

}  // namespace

std::string problem_of_character_maps(std::string_view model) {
  while (!model.empty()) {
    const auto field = take_field(model);
    if (!field) return "it is no protocol buffer";
    if (!field->is_bytes ||
        (field->number != kNormalizerSpec && field->number != kDenormalizerSpec))
      continue;
    if (const std::string problem = problem_of_spec(field->bytes); !problem.empty())
      return "its character map: " + problem;
  }
  return "";
}

}  // namespace trellis::trainer
