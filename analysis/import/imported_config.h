#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

/// A configuration of another program as one of this program: what becomes of each of its keys.
namespace trellis::analysis {

/// A key of the configuration that is imported.
struct SourceKey {
  std::string key;    ///< "model.tensor_model_parallel_size", "--num-layers", "config.hidden_size"
  std::string value;  ///< as YAML on one line: `8`, `[1, 2]`, `"a b"`
  std::string where;  ///< "file:12"
  bool operator==(const SourceKey&) const = default;
};

enum class ImportStatus {
  kMapped,       ///< it decides keys of the result
  kDefault,      ///< its value is what happens anyway
  kIgnored,      ///< no value of it has an effect here, for the reason in the note
  kUnsupported,  ///< its value asks for what this program does not do; the note has the advice
  kUnclassified  ///< no one knows the key
};
/// "mapped", "default", "ignored", "unsupported", "unclassified"
[[nodiscard]] const char* name(ImportStatus status);

/// A key of the result, dotted, and its value as YAML on one line.
struct Setting {
  std::string key, value;
  bool operator==(const Setting&) const = default;
};

struct ImportedKey {
  SourceKey source;
  ImportStatus status = ImportStatus::kUnclassified;
  std::vector<Setting> settings = {};  ///< what it became; kIgnored, kDefault: what stays in the
                                       ///< result without an effect, mostly nothing
  std::string note = {};               ///< a reason or advice; kMapped: "" or what is not obvious
  bool operator==(const ImportedKey&) const = default;
};

struct ImportedConfig {
  std::string from;                   ///< "nemo"
  std::vector<ImportedKey> keys;      ///< in the order of the source
  std::vector<Setting> implied = {};  ///< of the result, which no single key asks for
};

/// Settings of the result in order: those of the first key first, `implied` last. Throws
/// ConfigError that names both places where two keys give one setting different values.
[[nodiscard]] std::vector<Setting> settings_of(const ImportedConfig& imported);

/// Classifies a setting in this program's schema (trainer/config/reader/known_keys.h): mapped to
/// itself, or the reason why not. `source`: where it comes from; `setting`: what it means here.
[[nodiscard]] ImportedKey classify(SourceKey source, Setting setting);

/// Note on a coefficient of Megatron's auxiliary loss, which NeMo shares.
inline constexpr const char* kAuxiliaryLossNote =
    "Megatron adds a loss per layer, divided by top_k; here it is one loss of all layers: multiply "
    "by layers / top_k for about the same strength";

// Results for a key, one kind each.
[[nodiscard]] ImportedKey ignored(SourceKey source, std::string why);
[[nodiscard]] ImportedKey at_default(SourceKey source, std::string why = "");
[[nodiscard]] ImportedKey unsupported(SourceKey source, std::string advice);
/// classify() of each of `settings`. One that is not supported, or that no section knows, decides;
/// one without an effect is left out, unless there is no other.
[[nodiscard]] ImportedKey mapped(const SourceKey& source, std::vector<Setting> settings,
                                 std::string note = {});

/// model.model_config names a file from the folder of its configuration. Makes one that holds from
/// `before` hold from the folder `after`.
void move_paths(ImportedConfig& imported, const std::filesystem::path& before,
                const std::filesystem::path& after);

/// How many keys of `imported` have this status.
[[nodiscard]] std::size_t count(const ImportedConfig& imported, ImportStatus status);

}  // namespace trellis::analysis
