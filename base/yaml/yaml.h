#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/units.h"

namespace trellis {

class YamlNodeImpl;
namespace yaml {
struct Document;
}

/// One mapping of a strict YAML file. Every key that is asked for becomes known; `reject_unknown`
/// turns the others into problems with file:line:key and the nearest known name. Reading never
/// throws: problems collect in `Problems`, and a read that failed returns the default. Types T:
/// bool, int, std::int64_t, double, std::string, std::vector of those, and the quantities of
/// units.h, which must carry their unit in the file ("820 GB/s", "24 MiB", "1.4 GHz", "7 ns"): a
/// bare number for them is a problem.
class YamlMap {
 public:
  template <typename T>
  T get(const std::string& key, T default_value) const;  ///< absent or null: the default
  template <typename T>
  T required(const std::string& key) const;  ///< absent: a problem
  template <typename T>
  std::optional<T> optional(const std::string& key) const;  ///< absent or null: nullopt

  [[nodiscard]] bool has(const std::string& key) const;  ///< does not make the key known
  [[nodiscard]] bool is_map(const std::string& key) const;
  /// True if the value of `key`, or a mapping around it, is a reference that could not be resolved.
  /// That is reported as a problem already, so what is missing because of it is not another
  /// problem.
  [[nodiscard]] bool is_unresolved(const std::string& key) const;
  [[nodiscard]] YamlMap map(const std::string& key) const;  ///< absent: an empty map
  [[nodiscard]] std::vector<YamlMap> list_of_maps(const std::string& key) const;
  [[nodiscard]] std::vector<std::string> keys() const;            ///< in file order
  [[nodiscard]] std::string where(const std::string& key) const;  ///< "file:line:dotted.key"
  [[nodiscard]] std::string raw(
      const std::string& key) const;  ///< the scalar's text, "" when absent or no scalar
  [[nodiscard]] std::string flow_text(
      const std::string& key) const;  ///< the whole value as YAML on one line, "null" when absent
  void problem(const std::string& key, const std::string& text) const;  ///< adds where(key) + text
  void allow_any(const std::string& key) const;  ///< known, whatever it holds
  void reject_unknown() const;  ///< this map only; call it on each map after reading it

 private:
  friend class YamlDocument;
  std::shared_ptr<YamlNodeImpl> impl_;
};

/// A parsed YAML file with Hydra-style features: `key.path=value` overrides, `${a.b}`,
/// `${.sibling}` and `${multiply:a, b}` interpolation. Duplicate keys are problems.
class YamlDocument {
 public:
  /// Throws ConfigError (file:line:column) when the file is missing or does not parse.
  static YamlDocument load(const std::filesystem::path& file,
                           const std::vector<std::string>& overrides = {});
  static YamlDocument parse(const std::string& text, const std::string& name,
                            const std::vector<std::string>& overrides = {});
  [[nodiscard]] YamlMap root() const;
  [[nodiscard]] Problems& problems() const;
  /// "file:line:key" of addresses such as s3://KEY:SECRET@bucket, whose values are without keys
  /// here: a document that is only shown goes on, whoever would use one refuses it.
  [[nodiscard]] const std::vector<std::string>& addresses_with_keys() const;
  [[nodiscard]] std::string resolved_text()
      const;  ///< the document after overrides and interpolation, as YAML

 private:
  friend class YamlSource;
  friend class YamlComposition;  // base/yaml/yaml_compose.h
  /// `fill` makes the tree; what it names is resolved after that.
  static YamlDocument of_tree(const std::function<void(yaml::Document&)>& fill);
  struct State;
  std::shared_ptr<State> state_;
};

/// A YAML file that is read many times with other overrides: parsed once. Several threads may use
/// it.
class YamlSource {
 public:
  /// Throws as YamlDocument::load.
  static YamlSource load(const std::filesystem::path& file);
  /// Returns what YamlDocument::load gives for the same file with these overrides.
  [[nodiscard]] YamlDocument with(const std::vector<std::string>& overrides) const;

 private:
  std::shared_ptr<const YamlDocument> parsed_;
};

/// "2.9 TB/s", "64 KiB", "1.4 GHz", "7 ns", "92 TFLOPS" → the quantity; nullopt when the unit is
/// missing or of another dimension.
template <typename Q>
std::optional<Q> parse_quantity(const std::string& text);

}  // namespace trellis
