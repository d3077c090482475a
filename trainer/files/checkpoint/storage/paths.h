#pragma once

#include <string>
#include <string_view>

namespace trellis::checkpoint {

/// A name for `path` while it is being written: no other writer of any process has it, and
/// is_unfinished() knows it.
[[nodiscard]] std::string unfinished_name(const std::string& path);

/// The parts before the last '/'; "" when there is none.
[[nodiscard]] std::string parent_of(const std::string& path);

}  // namespace trellis::checkpoint
