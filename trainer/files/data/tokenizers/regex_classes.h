#pragma once

#include <string>

namespace trellis::trainer {

/// A pattern whose classes of characters, \p{L}, \p{Lu}, …, \p{M}, \p{N}, \p{P} and \s, have the
/// characters that the reference's regular expressions take for them, and PCRE2 may not: it has
/// another version of Unicode, and another idea of spaces.
[[nodiscard]] std::string with_reference_classes(const std::string& pattern);

}  // namespace trellis::trainer
