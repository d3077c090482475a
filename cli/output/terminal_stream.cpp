#include "cli/output/terminal_stream.h"

#include "base/escape.h"

namespace trellis::cli {

TerminalStream::TerminalStream(std::ostream& stream)
    : stream_(stream), target_(stream.rdbuf(this)) {}

TerminalStream::~TerminalStream() {
  send(unfinished_);
  target_->pubsync();
  const auto state = stream_.rdstate();  // a failed write must stay visible, and rdbuf() clears it
  stream_.rdbuf(target_);
  stream_.setstate(state);
}

bool TerminalStream::send(std::string_view text) {
  const std::string escaped = terminal_text(text);
  return target_->sputn(escaped.data(), static_cast<std::streamsize>(escaped.size())) ==
         static_cast<std::streamsize>(escaped.size());
}

std::streamsize TerminalStream::xsputn(const char* text, std::streamsize size) {
  unfinished_.append(text, static_cast<std::size_t>(size));
  const std::string_view all = unfinished_;
  const std::size_t whole = all.size() - unfinished_utf8(all);
  const bool sent = send(all.substr(0, whole));
  unfinished_.erase(0, whole);
  return sent ? size : 0;
}

TerminalStream::int_type TerminalStream::overflow(int_type character) {
  if (traits_type::eq_int_type(character, traits_type::eof()))
    return traits_type::not_eof(character);
  const char byte = traits_type::to_char_type(character);
  return xsputn(&byte, 1) == 1 ? character : traits_type::eof();
}

int TerminalStream::sync() { return target_->pubsync(); }

}  // namespace trellis::cli
