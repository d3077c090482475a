#include "trainer/files/data/records/saved_dataset.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/escape.h"
#include "base/files/input_file.h"
#include "base/files/mapped_file.h"
#include "base/json/json_text.h"

namespace trellis::trainer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kExpected = "what datasets' save_to_disk writes";
constexpr const char* kDictionary = "dataset_dict.json";

json read_json(const fs::path& path) {
  const MappedFile file(path);
  return parse_json(file.text(), path.string(), kExpected);
}

bool is_there(const fs::path& file) {
  std::error_code ignored;
  return fs::exists(file, ignored);
}

/// The folders that a dictionary of data sets names.
std::string splits_of(const fs::path& folder) {
  const json document = read_json(folder / kDictionary);
  const auto splits = document.is_object() ? document.find("splits") : document.end();
  std::string names;
  if (document.is_object() && splits != document.end() && splits->is_array()) {
    for (const json& split : *splits)
      if (split.is_string())
        names += (names.empty() ? "" : " or ") + (folder / split.get<std::string>()).string();
  }
  return names.empty() ? (folder / "train").string() : names;
}

std::string name_in(const json& entry, const fs::path& state, const char* key) {
  const auto name = entry.is_object() ? entry.find("filename") : entry.end();
  if (!entry.is_object() || name == entry.end() || !name->is_string())
    throw ConfigError(state.string() + ": " + key +
                      ": expected entries {\"filename\": \"…\"}, got " +
                      terminal_line(entry.dump().substr(0, 200)));
  return name->get<std::string>();
}

/// Versions before 2 of datasets left the order of rows in a separate file.
void refuse_index(const json& document, const fs::path& state) {
  const auto index = document.find("_indices_data_files");
  if (index == document.end() || !index->is_array() || index->empty()) return;
  throw ConfigError(state.string() + ": _indices_data_files: the rows are chosen by " +
                    terminal_line(name_in(index->front(), state, "_indices_data_files")) +
                    ", which this version does not read: expected a data set that is saved whole; "
                    "save flatten_indices() of it");
}

}  // namespace

bool is_saved_dataset(const fs::path& folder) {
  if (is_there(folder / kDictionary)) return true;
  const fs::path state = folder / "state.json";
  if (!why_no_input_file(state).empty()) return false;
  const json document = json::parse(MappedFile(state).text(), nullptr, /*allow_exceptions=*/false);
  return document.is_object() && document.contains("_data_files");
}

std::vector<std::string> files_of_saved_dataset(const fs::path& folder, const std::string& where) {
  const fs::path state = folder / "state.json";
  std::error_code error;
  if (!fs::exists(folder, error))
    throw ConfigError(where + ": " + (error ? error.message() : "there is no such directory"));
  if (!why_no_input_file(state).empty())
    throw ConfigError(
        where + (is_there(folder / kDictionary)
                     ? ": this is a dictionary of data sets: name one of them, " + splits_of(folder)
                     : ": there is no state.json: expected a directory that datasets' "
                       "save_to_disk has written"));
  const json document = read_json(state);
  const auto entries = document.find("_data_files");
  if (!document.is_object() || entries == document.end() || !entries->is_array()) {
    throw ConfigError(
        state.string() + ": _data_files: expected a list of files, got " +
        (document.is_object() && entries != document.end() ? entries->type_name() : "nothing"));
  }
  refuse_index(document, state);
  std::vector<std::string> files;
  for (const json& entry : *entries) {
    files.push_back((folder / name_in(entry, state, "_data_files")).string());
    if (const std::string why = why_no_input_file(files.back()); !why.empty())
      throw ConfigError(files.back() + ": " + why +
                        ", and state.json names it: copy the data set again");
  }
  if (files.empty())
    throw ConfigError(state.string() + ": _data_files is empty: the data set has no rows");
  return files;
}

}  // namespace trellis::trainer
