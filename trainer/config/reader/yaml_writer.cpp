#include "trainer/config/reader/yaml_writer.h"

#include <fmt/format.h>

#include "base/address.h"
#include "trainer/config/reader/known_keys.h"

namespace trellis::trainer {
namespace {

/// Sections without their own field: each value in them is kept as it is written.
bool is_kept_whole(const std::string& section) {
  return section == "step_timing_kwargs" || section == "model_alignment_strategy";
}

bool is_kept(const KnownKey& known) {
  const KeyUse use = known.group->use;
  return use == KeyUse::kIgnored || use == KeyUse::kLater ||
         (use == KeyUse::kSection && is_kept_whole(known.key));
}

}  // namespace

void YamlWriter::open(std::string_view section) {
  text_ += fmt::format("{}{}:\n", indent_, section);
  indent_ += "  ";
}

void YamlWriter::close() { indent_.resize(indent_.size() - 2); }

void YamlWriter::text(std::string_view key, std::string_view value) { raw(key, quoted(value)); }

void YamlWriter::text_or_null(std::string_view key, std::string_view value) {
  raw(key, value.empty() ? "null" : quoted(value));
}

void YamlWriter::boolean(std::string_view key, bool value) { raw(key, value ? "true" : "false"); }

void YamlWriter::integer(std::string_view key, std::int64_t value) {
  raw(key, fmt::format("{}", value));
}

void YamlWriter::number(std::string_view key, double value) { raw(key, fmt::format("{}", value)); }

void YamlWriter::number_or_null(std::string_view key, const std::optional<double>& value) {
  raw(key, value ? fmt::format("{}", *value) : "null");
}

void YamlWriter::integer_or_null(std::string_view key, const std::optional<std::int64_t>& value) {
  raw(key, value ? fmt::format("{}", *value) : "null");
}

void YamlWriter::texts(std::string_view key, const std::vector<std::string>& values) {
  if (values.empty()) return raw(key, "null");
  std::string list;
  for (const std::string& value : values) list += (list.empty() ? "" : ", ") + quoted(value);
  raw(key, "[" + list + "]");
}

void YamlWriter::raw(std::string_view key, std::string_view value) {
  text_ += fmt::format("{}{}: {}\n", indent_, key, value);
}

void YamlWriter::keep(const YamlMap& source, std::string_view path) {
  for (const KnownKey& known : known_keys_of(path)) {
    if (is_kept(known) && source.has(known.key)) raw(known.key, source.flow_text(known.key));
  }
}

std::string YamlWriter::quoted(std::string_view value) {
  std::string out = "\"";
  for (const char c : without_keys(value)) {  // an imported address, or one of an older program
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace trellis::trainer
