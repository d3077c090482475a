#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/files/mapped_file.h"

namespace trellis::trainer {

/// A .npy array of whole numbers, C order, of one or two dimensions, mapped. Throws ConfigError
/// when the header is not that of such an array or the file's length does not fit it.
class NpyArray {
 public:
  explicit NpyArray(const std::filesystem::path& path);
  [[nodiscard]] const std::string& descr() const { return descr_; }  ///< "<i4", "<u4", "<i8"
  [[nodiscard]] const std::vector<std::int64_t>& shape() const { return shape_; }
  [[nodiscard]] std::int64_t size() const;
  /// Element i of the flattened array.
  [[nodiscard]] std::int64_t operator[](std::int64_t i) const;

 private:
  MappedFile file_;
  std::string descr_;
  std::vector<std::int64_t> shape_;
  std::size_t first_ = 0;
};

using NpyValues = std::variant<std::span<const std::int32_t>, std::span<const std::uint32_t>,
                               std::span<const std::int64_t>>;

/// Written under its own name and renamed when complete: several processes may write the same
/// file. Throws ConfigError when the place cannot be written. `columns` > 0: two dimensions.
void write_npy(const std::filesystem::path& path, const NpyValues& values,
               std::int64_t columns = 0);

}  // namespace trellis::trainer
