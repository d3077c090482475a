#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/reader/section_reader.h"
#include "trainer/config/reader/yaml_writer.h"

namespace trellis::trainer {

/// A key as a section's visitor (Fields) lists it.
struct FieldName {
  std::string key;
  bool own;  ///< of origin kOwnKey
};

/// Visits the keys of a section, each once. A section lists its keys in one function; its reader,
/// its part of the resolved YAML, the table of known keys and the reference of keys follow from it.
/// When it reads, the values hold the defaults before, and those of the file afterwards.
class Fields {
 public:
  static Fields reading(SectionReader& reader) { return {&reader, nullptr, nullptr}; }
  static Fields writing(YamlWriter& out) { return {nullptr, &out, nullptr}; }
  /// Appends the keys to `names`; values do not count.
  static Fields naming(std::vector<FieldName>& names) { return {nullptr, nullptr, &names}; }

  /// The next key is one that NxDT does not have.
  Fields& own();

  void boolean(const char* key, bool& value);
  void integer(const char* key, int& value);
  void required_positive(const char* key, int& value);        ///< ≥ 1
  void positive(const char* key, int& value);                 ///< ≥ 1
  void positive(const char* key, std::optional<int>& value);  ///< ≥ 1 or null
  void size(const char* key, int& value);                     ///< ≥ 1; required where it is 0
  void positive(const char* key, double& value);              ///< > 0
  void non_negative(const char* key, int& value);
  void non_negative(const char* key, std::int64_t& value);
  void non_negative(const char* key, double& value);
  void fraction(const char* key, double& value);  ///< in [0, 1]
  void number(const char* key, std::optional<double>& value);
  void text(const char* key, std::string& value);
  void text_or_null(const char* key, std::string& value);  ///< "" is null
  void texts(const char* key, std::vector<std::string>& values);
  void one_of(const char* key, std::string& value, const std::vector<std::string>& legal);

  using Read = std::function<void(SectionReader& reader)>;
  using Write = std::function<void(YamlWriter& out)>;
  /// A key whose values have a form that the others do not cover.
  void form(const char* key, const Read& read, const Write& write);
  /// A key that is read but never written: another name, or what the file may say in another way.
  void only_read(const char* key, const Read& read = {});
  /// A section in this one; its keys are listed by itself.
  void section(const Read& read, const Write& write);
  /// A rule over keys that are listed before it: it checks them, or changes values that depend on
  /// them.
  void rule(const Read& check);

 private:
  Fields(SectionReader* reader, YamlWriter* out, std::vector<FieldName>* names)
      : reader_(reader), out_(out), names_(names) {}
  void name(const char* key);

  SectionReader* reader_;
  YamlWriter* out_;
  std::vector<FieldName>* names_;
  bool own_ = false;
};

}  // namespace trellis::trainer
