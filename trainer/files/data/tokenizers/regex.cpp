#define PCRE2_CODE_UNIT_WIDTH 8
#include "trainer/files/data/tokenizers/regex.h"

#include <pcre2.h>

#include <algorithm>

#include "base/error.h"
#include "trainer/files/data/tokenizers/regex_classes.h"

namespace trellis::trainer {

struct Regex::Compiled {
  ~Compiled() {
    pcre2_match_data_free(match);
    pcre2_code_free(code);
  }
  std::string pattern, where;
  pcre2_code* code = nullptr;
  pcre2_match_data* match = nullptr;
};

namespace {

std::string message_of(int error) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

Regex::Regex(const std::string& pattern, const std::string& where)
    : compiled_(std::make_unique<Compiled>()) {
  compiled_->pattern = pattern;
  compiled_->where = where;
  int error = 0;
  std::size_t offset = 0;
  const std::string written = with_reference_classes(pattern);
  compiled_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(written.data()), written.size(),
                                  PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  if (compiled_->code == nullptr) {
    throw ConfigError(where + ": expected a regular expression, got " + pattern + ": " +
                      message_of(error) + " at character " +
                      std::to_string(std::min(offset, pattern.size())));
  }
  pcre2_jit_compile(compiled_->code, PCRE2_JIT_COMPLETE);  // where it fails the interpreter serves
  compiled_->match = pcre2_match_data_create_from_pattern(compiled_->code, nullptr);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

std::optional<TextRange> Regex::find(std::string_view text, std::size_t place) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int found = pcre2_match(compiled_->code, subject, text.size(), place,
                                PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, compiled_->match, nullptr);
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0)
    throw ConfigError(compiled_->where + ": the regular expression " + compiled_->pattern +
                      " failed on a text: " + message_of(found));
  const std::size_t* range = pcre2_get_ovector_pointer(compiled_->match);
  if (range[0] >= range[1]) return std::nullopt;  // \K can move the start after the end
  return TextRange{range[0], range[1]};
}

}  // namespace trellis::trainer
