#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace trellis::trainer {

/// Part of a text, in bytes.
struct TextRange {
  std::size_t begin = 0, end = 0;
};

/// A Unicode regular expression (PCRE2, compiled). Texts must be valid UTF-8. Not for several
/// threads at a time.
class Regex {
 public:
  /// `where` is named in the ConfigError for a pattern that is none.
  Regex(const std::string& pattern, const std::string& where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  /// The first match that is not empty from `place` on. Throws ConfigError when the search exceeds
  /// PCRE2's limits.
  [[nodiscard]] std::optional<TextRange> find(std::string_view text, std::size_t place) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace trellis::trainer
