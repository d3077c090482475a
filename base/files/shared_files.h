#pragma once

#include <filesystem>
#include <string>

namespace trellis {

/// The folder `name` ("configs", "examples", …) of what is installed with the program:
/// ../share/trellis/<name>, seen from the folder of the library that asks, else of the program.
/// `source`, a folder of the source tree, where none is installed. "" when neither is there.
[[nodiscard]] std::filesystem::path shared_directory(const std::string& name,
                                                     const std::filesystem::path& source);

/// A library that is loaded at run time: in the folder of the library or program that asks, or in
/// lib/ next to that folder, or next to the program's. Where it would be, when it is in none.
[[nodiscard]] std::filesystem::path installed_library(const std::string& file);

}  // namespace trellis
