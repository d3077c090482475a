#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trellis::trainer {

/// The documents of a training text, in the order in which they are read.
struct TextFiles {
  std::string source;  ///< what was read, for people
  std::vector<std::string> documents;
  std::int64_t num_skipped = 0;  ///< files of a directory that are no text, or empty
  std::string first_skipped;     ///< one of them, as an example
};

/// A file (whatever it holds), or every text file below a directory, sorted by path. Hidden entries
/// and linked directories are left out; a file that is not UTF-8 or holds a NUL is skipped and
/// counted. A .jsonl file is one document per line. Throws ConfigError, which names `key`, when the
/// path is missing, unreadable or holds no text.
[[nodiscard]] TextFiles read_text_files(const std::filesystem::path& path,
                                        const std::string& key = "data.train_dir");

/// Files that read_text_files() would read, sorted by path.
[[nodiscard]] std::vector<std::filesystem::path> list_text_files(const std::filesystem::path& path,
                                                                 const std::string& key);

/// A file of which each line is a document.
[[nodiscard]] bool is_json_lines(const std::filesystem::path& file);

/// Calls `body` with each document of a file: the whole of a text file, or the member `json_key` of
/// each line of a .jsonl file (blank lines are left out). Throws ConfigError with file and line for
/// a line that is no JSON object with such a text.
void for_each_document(const std::filesystem::path& file, const std::string& json_key,
                       const std::function<void(std::string)>& body);
inline constexpr const char* kJsonTextKey = "text";

/// The Python standard library's .py files: a text of some megabytes that nearly every machine has.
/// `search_path`: directories as in PATH. Throws ConfigError when no Python is found.
[[nodiscard]] TextFiles read_python_library(std::string_view search_path);

/// Text: valid UTF-8 without NUL.
[[nodiscard]] bool is_text(std::string_view bytes);

}  // namespace trellis::trainer
