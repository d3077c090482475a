#pragma once

#include <filesystem>

namespace trellis {

/// Gives `to` the content of `from` without a copy where the file system can: a clone, else a
/// second name of the same file, else a copy. `to` is complete when it appears, and replaced when
/// it is there. REQUIRES: nothing changes either of them in place. Throws OutputError.
void share_file(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace trellis
