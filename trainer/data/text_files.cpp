#include "trainer/data/text_files.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>

#include "base/error.h"

namespace trellis::trainer {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void cannot_read(const fs::path& path, const std::string& reason) {
  throw ConfigError("data.train_dir: cannot read " + path.string() + ": " + reason);
}

std::string read_file(const fs::path& path) {
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream content;
  content << stream.rdbuf();
  // An empty file sets failbit on `content`; only the file's own state tells an error.
  if (!stream.is_open() || stream.bad()) cannot_read(path, errno != 0 ? std::strerror(errno) : "unknown error");
  return std::move(content).str();
}

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

/// Regular files below `directory`, sorted by path. `extension`: "" = every file.
std::vector<fs::path> list_files(const fs::path& directory, const std::string& extension) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(directory, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code ignored;  // a dangling link is no regular file
    if (is_hidden(entry->path())) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file(ignored) && (extension.empty() || entry->path().extension() == extension)) {
      files.push_back(entry->path());
    }
  }
  if (error) cannot_read(directory, error.message());
  std::ranges::sort(files, {}, [](const fs::path& path) { return path.string(); });
  return files;
}

TextFiles read_directory(const fs::path& directory, const std::string& extension) {
  TextFiles files;
  files.source = directory.string();
  for (const fs::path& path : list_files(directory, extension)) {
    std::string content = read_file(path);
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

/// The newest <prefix>/lib/pythonX.Y that holds a standard library (a virtual environment's does not).
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

/// The standard library beside the first python3 of the search path; links are followed, which leads from a virtual environment to its base.
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

}  // namespace

bool is_text(std::string_view bytes) {
  for (std::size_t i = 0; i < bytes.size();) {
    const auto first = static_cast<unsigned char>(bytes[i]);
    const std::size_t length = first < 0x80 ? 1 : first >= 0xC2 && first < 0xE0 ? 2 : (first & 0xF0) == 0xE0 ? 3 : first >= 0xF0 && first < 0xF5 ? 4 : 0;
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

TextFiles read_text_files(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) cannot_read(path, "there is no such file or directory");
  if (error) cannot_read(path, error.message());
  TextFiles files;
  if (fs::is_directory(status)) {
    files = read_directory(path, "");
  } else {
    files.source = path.string();
    if (std::string content = read_file(path); !content.empty()) files.documents.push_back(std::move(content));
  }
  if (files.documents.empty()) {
    cannot_read(path, "it holds no text" + (files.num_skipped > 0 ? " (" + std::to_string(files.num_skipped) + " files skipped, such as " +
                                                                       files.first_skipped + ")"
                                                                 : std::string()));
  }
  return files;
}

TextFiles read_python_library(std::string_view search_path) {
  const auto library = find_python_library(search_path);
  if (!library) {
    throw ConfigError("data.train_dir: not given, and the default, the Python standard library's sources, was not found beside a python3 in PATH: "
                      "set data.train_dir to a text file or to a directory of text files");
  }
  TextFiles files = read_directory(*library, ".py");
  files.source = "the Python standard library's sources in " + library->string();
  if (files.documents.empty()) cannot_read(*library, "it holds no text");
  return files;
}

}  // namespace trellis::trainer
