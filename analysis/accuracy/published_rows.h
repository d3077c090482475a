#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/yaml/yaml.h"

namespace trellis::analysis {

/// The use of a published row: `fit` rows may calibrate parameters, `test` rows only judge,
/// `excluded` rows are listed with their reason.
enum class RowUse { kFit, kTest, kExcluded };
[[nodiscard]] std::string_view name(RowUse use);

/// One published measurement of benchmarks/published/<subject>.yaml. `spec` holds the keys that say
/// what to run.
struct PublishedRow {
  std::string id;
  std::string source;
  std::string group;
  std::string instance;
  RowUse use = RowUse::kTest;
  std::string reason;  ///< excluded rows
  double time_us = 0;  ///< as published
  // Training rows.
  std::string size;               ///< class of the model: "1-10B"
  std::vector<std::string> also;  ///< groups in addition to `group`
  std::map<std::string, double>
      measured_us;  ///< release or run → its time; the row's own among them
  YamlMap spec;
};

/// The rows of a subject and the document that they were read from, whose problems collect while
/// `spec` is read.
struct PublishedRows {
  YamlDocument document;
  std::vector<PublishedRow> rows;
};

/// Throws ConfigError with every problem of the file: missing keys, unknown words, an id twice.
[[nodiscard]] PublishedRows read_published_rows(const std::string& subject);

}  // namespace trellis::analysis
