#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/yaml.h"

namespace trellis::cli {

/// What a published row is for: `fit` rows may calibrate parameters, `test` rows only judge, `excluded` rows are listed with their reason.
enum class RowUse { kFit, kTest, kExcluded };
[[nodiscard]] std::string_view name(RowUse use);

/// $TRELLIS_PUBLISHED_DIR, what lies beside the program, or benchmarks/published of the source tree.
[[nodiscard]] std::filesystem::path published_directory();

/// One published measurement of benchmarks/published/<subject>.yaml. `spec` holds the keys that say what to run.
struct PublishedRow {
  std::string id;
  std::string source;
  std::string group;
  std::string instance;
  RowUse use = RowUse::kTest;
  std::string reason;  ///< excluded rows
  double time_us = 0;  ///< as published
  YamlMap spec;
};

/// The rows of a subject and the document that they were read from, whose problems collect while `spec` is read.
struct PublishedRows {
  YamlDocument document;
  std::vector<PublishedRow> rows;
};

/// Throws ConfigError with every problem of the file: missing keys, unknown words, an id twice.
[[nodiscard]] PublishedRows read_published_rows(const std::string& subject);

}  // namespace trellis::cli
