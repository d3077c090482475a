#include "trainer/files/data/text_files.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/escape.h"
#include "base/files/input_file.h"
#include "base/files/mapped_file.h"

namespace trellis::trainer {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void cannot_read(const fs::path& path, const std::string& reason,
                              const std::string& key) {
  throw ConfigError(key + ": " + terminal_line(path.string()) + ": cannot read: " + reason);
}

std::string read_file(const fs::path& path, const std::string& key) {
  try {
    return read_input_file(path);
  } catch (const ConfigError& error) {
    throw ConfigError(key + ": " + error.what());
  }
}

void check_exists(const fs::path& path, const std::string& key) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found)
    cannot_read(path, "there is no such file or directory", key);
  if (error) cannot_read(path, error.message(), key);
}

/// The notes of such a folder would be taken for text.
void refuse_data_set(const fs::path& folder, const std::string& key) {
  std::error_code ignored;
  if (!fs::exists(folder / "state.json", ignored) ||
      !fs::exists(folder / "dataset_info.json", ignored))
    return;
  throw ConfigError(key + ": " + folder.string() +
                    ": this is a data set of tokens that datasets' save_to_disk wrote, and no "
                    "text: expected model_source: hf and data.tokenizer: null for it, or a folder "
                    "of text");
}

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

/// Regular files below `directory`, sorted by path. `extension`: "" = every file.
std::vector<fs::path> list_files(const fs::path& directory, const std::string& extension,
                                 const std::string& key) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(directory, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code ignored;  // a dangling link is no regular file
    if (is_hidden(entry->path())) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file(ignored) &&
               (extension.empty() || entry->path().extension() == extension)) {
      files.push_back(entry->path());
    }
  }
  if (error) cannot_read(directory, error.message(), key);
  std::ranges::sort(files, {}, [](const fs::path& path) { return path.string(); });
  return files;
}

/// The text of one line of a .jsonl file.
std::string text_of(std::string_view line, const std::string& where, const std::string& json_key) {
  nlohmann::json document;
  try {
    document = nlohmann::json::parse(line);
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(where + ": this is no JSON: " + terminal_line(error.what()) +
                      "; expected one object {\"" + json_key + "\": \"…\"} in each line");
  }
  if (!document.is_object())
    throw ConfigError(where + ": expected an object {\"" + json_key + "\": \"…\"}, got " +
                      document.type_name());
  const auto text = document.find(json_key);
  if (text == document.end()) {
    std::string members;
    for (const auto& member : document.items())
      members += (members.empty() ? "\"" : ", \"") + member.key() + '"';
    throw ConfigError(where + ": there is no member \"" + json_key + "\"; the line has " +
                      (members.empty() ? "none" : members.substr(0, 200)));
  }
  if (!text->is_string())
    throw ConfigError(where + ": member \"" + json_key + "\": expected a text, got " +
                      text->type_name());
  return std::move(text->get_ref<std::string&>());
}

void for_each_line_document(const fs::path& file, const std::string& json_key,
                            const std::function<void(std::string)>& body) {
  const MappedFile mapped(file);
  std::string_view rest = mapped.text();
  for (std::int64_t number = 1; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    body(text_of(line, file.string() + ":" + std::to_string(number), json_key));
  }
}

TextFiles read_directory(const fs::path& directory, const std::string& extension,
                         const std::string& key) {
  TextFiles files;
  files.source = directory.string();
  for (const fs::path& path : list_files(directory, extension, key)) {
    if (is_json_lines(path)) {
      for_each_line_document(path, kJsonTextKey, [&](std::string document) {
        files.documents.push_back(std::move(document));
      });
      continue;
    }
    std::string content = read_file(path, key);
    if (!content.empty() && is_text(content)) {
      files.documents.push_back(std::move(content));
    } else if (files.num_skipped++ == 0) {
      files.first_skipped = path.string();
    }
  }
  return files;
}

/// "python3.11" → {3, 11}
std::optional<std::pair<int, int>> python_version(const std::string& name) {
  constexpr std::string_view kPrefix = "python";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int major = 0, minor = 0;
  const char* last = name.data() + name.size();
  const auto [dot, no_major] = std::from_chars(name.data() + kPrefix.size(), last, major);
  if (no_major != std::errc() || dot == last || *dot != '.') return std::nullopt;
  const auto [end, no_minor] = std::from_chars(dot + 1, last, minor);
  if (no_minor != std::errc() || end != last) return std::nullopt;
  return std::pair{major, minor};
}

/// The newest <prefix>/lib/pythonX.Y that holds a standard library (a virtual environment's does
/// not).
std::optional<fs::path> library_below(const fs::path& prefix) {
  std::optional<fs::path> newest;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(prefix / "lib", error)) {
    const auto version = python_version(entry.path().filename().string());
    if (!version || !fs::exists(entry.path() / "os.py")) continue;
    if (!newest || *version > *python_version(newest->filename().string())) newest = entry.path();
  }
  return newest;
}

/// The standard library next to the first python3 of the search path; links are followed, which
/// leads from a virtual environment to its base.
std::optional<fs::path> find_python_library(std::string_view search_path) {
  for (std::size_t begin = 0; begin <= search_path.size();) {
    const std::size_t end = std::min(search_path.find(':', begin), search_path.size());
    const fs::path candidate = fs::path(search_path.substr(begin, end - begin)) / "python3";
    begin = end + 1;
    std::error_code error;
    const fs::path executable = fs::canonical(candidate, error);
    if (error) continue;
    if (auto library = library_below(executable.parent_path().parent_path())) return library;
  }
  return std::nullopt;
}

/// Bytes at the start that are ASCII and not zero, in steps of eight: nearly all of most texts.
std::size_t ascii_prefix(std::string_view bytes) {
  constexpr std::uint64_t kLow = 0x0101010101010101, kHigh = 0x8080808080808080;
  std::size_t size = 0;
  for (std::uint64_t eight = 0; size + sizeof eight <= bytes.size(); size += sizeof eight) {
    std::memcpy(&eight, bytes.data() + size, sizeof eight);
    if (((eight | (eight - kLow)) & kHigh) != 0) break;
  }
  return size;
}

}  // namespace

bool is_json_lines(const fs::path& file) { return file.extension() == ".jsonl"; }

bool is_text(std::string_view bytes) {
  for (std::size_t i = ascii_prefix(bytes); i < bytes.size(); i += ascii_prefix(bytes.substr(i))) {
    const auto first = static_cast<unsigned char>(bytes[i]);
    const std::size_t length = first < 0x80                    ? 1
                               : first >= 0xC2 && first < 0xE0 ? 2
                               : (first & 0xF0) == 0xE0        ? 3
                               : first >= 0xF0 && first < 0xF5 ? 4
                                                               : 0;
    if (first == 0 || length == 0 || i + length > bytes.size()) return false;
    std::uint32_t code = length == 1 ? first : first & (0x7Fu >> length);
    for (std::size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(bytes[i + k]);
      if ((next & 0xC0) != 0x80) return false;
      code = code << 6 | (next & 0x3Fu);
    }
    const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
    const bool surrogate = code >= 0xD800 && code < 0xE000;
    if (overlong || surrogate || code > 0x10FFFF) return false;
    i += length;
  }
  return true;
}

std::vector<fs::path> list_text_files(const fs::path& path, const std::string& key) {
  check_exists(path, key);
  refuse_data_set(path, key);
  std::error_code ignored;
  return fs::is_directory(path, ignored) ? list_files(path, "", key) : std::vector<fs::path>{path};
}

void for_each_document(const fs::path& file, const std::string& json_key,
                       const std::function<void(std::string)>& body) {
  if (is_json_lines(file)) return for_each_line_document(file, json_key, body);
  body(read_file(file, "input"));
}

TextFiles read_text_files(const fs::path& path, const std::string& key) {
  check_exists(path, key);
  refuse_data_set(path, key);
  TextFiles files;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    files = read_directory(path, "", key);
  } else {
    files.source = path.string();
    for_each_document(path, kJsonTextKey, [&](std::string document) {
      if (!document.empty()) files.documents.push_back(std::move(document));
    });
  }
  if (files.documents.empty()) {
    const std::string skipped = files.num_skipped == 0
                                    ? ""
                                    : " (" + std::to_string(files.num_skipped) +
                                          " files skipped, such as " + files.first_skipped + ")";
    cannot_read(path, "it holds no text" + skipped, key);
  }
  return files;
}

TextFiles read_python_library(std::string_view search_path) {
  const auto library = find_python_library(search_path);
  if (!library) {
    throw ConfigError(
        "data.train_dir: not given, and the default, the Python standard library's sources, was "
        "not found next to a python3 in PATH: "
        "set data.train_dir to a text file or to a directory of text files");
  }
  TextFiles files = read_directory(*library, ".py", "data.train_dir");
  files.source = "the Python standard library's sources in " + library->string();
  if (files.documents.empty()) cannot_read(*library, "it holds no text", "data.train_dir");
  return files;
}

}  // namespace trellis::trainer
