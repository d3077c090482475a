#pragma once

#include <string>
#include <string_view>

namespace trellis::trainer {

/// What is wrong with the character maps of a SentencePiece model; "" when nothing is. The library
/// trusts them: it follows their places in memory without asking whether they exist.
[[nodiscard]] std::string problem_of_character_maps(std::string_view model);

}  // namespace trellis::trainer
