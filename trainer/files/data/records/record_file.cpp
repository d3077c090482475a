#include "trainer/files/data/records/record_file.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/escape.h"
#include "base/files/input_file.h"
#include "base/files/mapped_file.h"
#include "base/json/json_builder.h"
#include "base/json/json_text.h"
#include "trainer/files/data/records/saved_dataset.h"

namespace trellis::trainer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

/// Throws as parse_json does, and keeps the order of members.
ordered_json parse_record(std::string_view text, const std::string& where) {
  try {
    ordered_json document = JsonBuilder<ordered_json>::parse(text, {});
    if (document.is_object()) return document;
    throw ConfigError(std::string("expected an object, got ") + document.type_name() +
                      "; expected one object in each line");
  } catch (const ConfigError& error) {
    throw ConfigError(where + ": " + error.what());
  }
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

class JsonLines : public RecordFile {
 public:
  explicit JsonLines(const std::string& path) : file_(path) {
    const std::string_view text = file_.text();
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      // A line that begins with a brace is not blank: nothing more is read of it.
      if (text[begin] == '{' || !is_blank(text.substr(begin, end - begin)))
        begins_.push_back(begin);
      begin = end + 1;
    }
  }
  std::int64_t num_records() const override { return static_cast<std::int64_t>(begins_.size()); }
  ordered_json record(std::int64_t index) const override {
    const std::string_view text = file_.text();
    const std::size_t begin = begins_[static_cast<std::size_t>(index)];
    const std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
    try {
      return parse_record(line, "");
    } catch (const ConfigError&) {
      return parse_record(line, where(index));  // counts lines: for errors only
    }
  }
  std::string where(std::int64_t index) const override {
    const std::string_view before =
        file_.text().substr(0, begins_[static_cast<std::size_t>(index)]);
    return file_.path().string() + ":" + std::to_string(std::ranges::count(before, '\n') + 1);
  }

 private:
  MappedFile file_;
  std::vector<std::size_t> begins_;
};

class JsonArray : public RecordFile {
 public:
  explicit JsonArray(std::string path) : path_(std::move(path)) {
    const std::string text = read_input_file(path_);
    (void)parse_json(text, path_, "an array of objects");  // its errors name line and column
    records_ = ordered_json::parse(text);
    for (std::size_t i = 0; i < records_.size(); ++i) {
      if (!records_[i].is_object())
        throw ConfigError(where(static_cast<std::int64_t>(i)) + ": expected an object, got " +
                          records_[i].type_name());
    }
  }
  std::int64_t num_records() const override { return static_cast<std::int64_t>(records_.size()); }
  ordered_json record(std::int64_t index) const override {
    return records_[static_cast<std::size_t>(index)];
  }
  std::string where(std::int64_t index) const override {
    return path_ + ": record " + std::to_string(index + 1);
  }

 private:
  std::string path_;
  ordered_json records_;
};

/// Files one after the other.
class Joined : public RecordFile {
 public:
  explicit Joined(std::vector<std::unique_ptr<const RecordFile>> files) : files_(std::move(files)) {
    for (const auto& file : files_) {
      firsts_.push_back(total_);
      total_ += file->num_records();
    }
  }
  std::int64_t num_records() const override { return total_; }
  ordered_json record(std::int64_t index) const override {
    const std::size_t file = file_of(index);
    return files_[file]->record(index - firsts_[file]);
  }
  std::string where(std::int64_t index) const override {
    const std::size_t file = file_of(index);
    return files_[file]->where(index - firsts_[file]);
  }
  std::string why_absent(const std::string& column) const override {
    for (const auto& file : files_)
      if (const std::string why = file->why_absent(column); !why.empty()) return why;
    return "";
  }

 private:
  [[nodiscard]] std::size_t file_of(std::int64_t index) const {
    return static_cast<std::size_t>(std::ranges::upper_bound(firsts_, index) - firsts_.begin()) - 1;
  }
  std::vector<std::unique_ptr<const RecordFile>> files_;
  std::vector<std::int64_t> firsts_;
  std::int64_t total_ = 0;
};

bool starts_with_bracket(const std::string& path) {
  const MappedFile file(path);
  const std::size_t first = file.text().find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && file.text()[first] == '[';
}

bool is_record_file(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".jsonl" || extension == ".json" || extension == ".arrow" ||
         extension == ".parquet";
}

bool is_compressed(const fs::path& path) {
  constexpr const char* kEndings[] = {".gz", ".zst", ".bz2", ".xz", ".zip"};
  return std::ranges::find(kEndings, path.extension().string()) != std::end(kEndings);
}

std::unique_ptr<const RecordFile> open_file(const std::string& path) {
  const std::string extension = fs::path(path).extension().string();
  if (extension == ".arrow") return open_arrow_records(path);
  if (extension == ".parquet") return open_parquet_records(path);
  if (extension == ".json" && starts_with_bracket(path)) return std::make_unique<JsonArray>(path);
  return std::make_unique<JsonLines>(path);
}

/// save_to_disk's notes are no data.
bool is_note(const fs::path& path) {
  return path.filename() == "state.json" || path.filename() == "dataset_info.json";
}

/// The files of a folder that hold its records.
std::vector<std::string> files_of_folder(const std::string& path, const std::string& key) {
  if (is_saved_dataset(path)) return files_of_saved_dataset(path, key + ": " + path);
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    if (is_record_file(entry.path()) && !is_note(entry.path()))
      names.push_back(entry.path().string());
  }
  if (error) throw ConfigError(key + ": " + path + ": " + error.message());
  std::ranges::sort(names);
  if (names.empty())
    throw ConfigError(key + ": " + path +
                      ": this folder holds no records: expected .jsonl, .json, .arrow or .parquet "
                      "files");
  return names;
}

std::unique_ptr<const RecordFile> open_folder(const std::string& path, const std::string& key) {
  std::vector<std::unique_ptr<const RecordFile>> files;
  for (const std::string& name : files_of_folder(path, key)) files.push_back(open_file(name));
  return std::make_unique<Joined>(std::move(files));
}

}  // namespace

std::unique_ptr<const RecordFile> open_records(const std::string& path, const std::string& key) {
  std::error_code ignored;
  std::unique_ptr<const RecordFile> records;
  if (fs::is_directory(path, ignored)) {
    records = open_folder(path, key);
  } else {
    if (const std::string why = why_no_input_file(path); !why.empty())
      throw ConfigError(key + ": " + path + ": " + why);
    if (!is_record_file(path))
      throw ConfigError(key + ": " + path +
                        ": records are read from .jsonl, .json, .arrow and .parquet files: " +
                        (is_compressed(path) ? "decompress it" : "rename it, or convert it"));
    records = open_file(path);
  }
  if (records->num_records() == 0) throw ConfigError(key + ": " + path + ": it holds no record");
  return records;
}

}  // namespace trellis::trainer
