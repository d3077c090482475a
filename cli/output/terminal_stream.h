#pragma once

#include <ostream>
#include <streambuf>
#include <string>
#include <string_view>

namespace trellis::cli {

/// While it lives, no control character that a file, a name or an argument brought along reaches
/// the terminal through `stream`: what is written there goes through terminal_text (base/escape.h).
/// A JSON document says the same after it.
class TerminalStream final : public std::streambuf {
 public:
  explicit TerminalStream(std::ostream& stream);
  ~TerminalStream() override;
  TerminalStream(const TerminalStream&) = delete;
  TerminalStream& operator=(const TerminalStream&) = delete;

 protected:
  int_type overflow(int_type character) override;
  std::streamsize xsputn(const char* text, std::streamsize size) override;
  int sync() override;

 private:
  bool send(std::string_view text);

  std::ostream& stream_;
  std::streambuf* target_;
  std::string unfinished_;  ///< the bytes of a character whose others come with the next write
};

}  // namespace trellis::cli
