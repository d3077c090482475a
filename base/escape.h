#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

/// Escapes texts before they are written where some characters have a meaning: one function per
/// kind of sink.
namespace trellis {

/// `text` for one line of a terminal: characters that control a terminal or reverse the reading
/// direction are written as \n, \t or \u001b, and bytes that are no UTF-8 as \xff. Line ends are
/// among them: a text cannot be taken for a line of the program. A text of more than
/// kMostShownBytes is cut, and the result states how many bytes there are.
[[nodiscard]] std::string terminal_line(std::string_view text);
/// The same for each line of a message: line ends and tabs stay.
[[nodiscard]] std::string terminal_lines(std::string_view text);
/// The same for all that is written to a stream, however long its lines are.
[[nodiscard]] std::string terminal_text(std::string_view text);
/// A longer line is not read by people.
inline constexpr std::size_t kMostShownBytes = std::size_t{16} << 10;
/// True if terminal_line() would escape a part of it.
[[nodiscard]] bool has_controls(std::string_view text);
/// The offset of the first byte that belongs to no UTF-8 character; nullopt: there is none.
[[nodiscard]] std::optional<std::size_t> find_no_utf8(std::string_view text);
/// Bytes at the end of `text` that begin a UTF-8 character and do not end it: whoever writes in
/// pieces keeps them for the next one.
[[nodiscard]] std::size_t unfinished_utf8(std::string_view text);

/// A cell of CSV (RFC 4180). A text that a spreadsheet would run as a formula (it starts with = + -
/// @, a tab or a carriage return) gets a single quote in front; numbers are not texts and never
/// come here.
[[nodiscard]] std::string csv_cell(std::string_view text);
/// Character data and attribute values of HTML, XML and SVG.
[[nodiscard]] std::string xml_text(std::string_view text);
/// JSON inside a script element of HTML: no text of it can end the element.
[[nodiscard]] std::string json_in_script(std::string_view json);
/// A quoted identifier or label of Graphviz's DOT, with its quotes; a line end becomes a line of
/// the label.
[[nodiscard]] std::string dot_text(std::string_view text);
/// A line or a cell of a table of Markdown: no HTML, no links, no border of a cell.
[[nodiscard]] std::string markdown_text(std::string_view text);
/// A word of a command line of bash that reads back as `text`.
[[nodiscard]] std::string shell_word(std::string_view text);

}  // namespace trellis
