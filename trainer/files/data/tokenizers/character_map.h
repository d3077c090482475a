#pragma once

#include <string>
#include <string_view>

namespace trellis::trainer {

/// The problem with the character maps of a SentencePiece model; "" when there is none. The library
/// trusts the maps: it follows their offsets in memory without a check that they are valid.
[[nodiscard]] std::string problem_of_character_maps(std::string_view model);

}  // namespace trellis::trainer
