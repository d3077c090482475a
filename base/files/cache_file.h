#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/content_hash.h"
#include "base/files/mapped_file.h"

namespace trellis {

/// One file of a cache: magic, schema, key, checksum (XXH3-128 of schema, key and payload),
/// payload. A file under another name, of another schema or version, cut off, changed or not of
/// this format is never taken for an entry.
///
/// The payload of `file`. None: there is no such file, or it is not whole and of this schema and
/// key, which one warning says.
[[nodiscard]] std::optional<std::string> read_cache_file(const std::filesystem::path& file,
                                                         std::string_view schema,
                                                         const ContentHash& key);

/// As read_cache_file(), for large payloads: they stay in the file, which is mapped.
struct MappedPayload {
  MappedFile file;
  std::string_view payload;
};
[[nodiscard]] std::optional<MappedPayload> map_cache_file(const std::filesystem::path& file,
                                                          std::string_view schema,
                                                          const ContentHash& key);

/// Throws Error when the place cannot be written. REQUIRES: at most kMostCacheBytes.
void write_cache_file(const std::filesystem::path& file, std::string_view schema,
                      const ContentHash& key, std::string_view payload);

/// True if write_cache_file made `file`, judged by its type and first bytes: only such files may be
/// removed to free space.
[[nodiscard]] bool is_cache_file(const std::filesystem::path& file);

/// Larger files are not read.
inline constexpr std::size_t kMostCacheBytes = std::size_t{256} << 20;

}  // namespace trellis
