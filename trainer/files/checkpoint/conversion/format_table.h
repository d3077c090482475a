#pragma once

#include <memory>
#include <span>

#include "trainer/files/checkpoint/formats/tensor_source.h"
#include "trainer/files/checkpoint/storage/place.h"

namespace trellis::checkpoint {

/// A format that open_checkpoint knows.
struct Format {
  const char* name;      ///< as TensorSource::format()
  const char* evidence;  ///< what is_at looks for, for error texts
  bool (*is_at)(const Place& place);
  std::unique_ptr<TensorSource> (*open)(const Place& place);
};

/// All formats, in the order in which they are tried.
[[nodiscard]] std::span<const Format> format_table();

}  // namespace trellis::checkpoint
