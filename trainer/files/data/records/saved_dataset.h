#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace trellis::trainer {

/// True if save_to_disk of `datasets` wrote the folder, for one data set or a dictionary of them:
/// it has state.json with _data_files, or dataset_dict.json.
[[nodiscard]] bool is_saved_dataset(const std::filesystem::path& folder);

/// The files that state.json names, in order: others, such as the cache-*.arrow of map(), filter()
/// and shuffle(), are no data. `where`: key and folder, named in errors. Throws ConfigError: there
/// is no state.json, or it is damaged, names files that are not there, or rows by an index; or the
/// folder is a dictionary of data sets.
[[nodiscard]] std::vector<std::string> files_of_saved_dataset(const std::filesystem::path& folder,
                                                              const std::string& where);

}  // namespace trellis::trainer
