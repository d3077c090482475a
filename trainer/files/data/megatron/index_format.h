#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

/// Places in an .idx file (see indexed_dataset.h for the whole picture).
namespace trellis::trainer {

inline constexpr std::string_view kIndexMagic{"MMIDIDX\0\0", 9};
inline constexpr std::uint64_t kIndexVersion = 1;
inline constexpr std::size_t kVersionOffset = 9, kTypeOffset = 17, kSequencesOffset = 18,
                             kDocumentsOffset = 26, kHeaderBytes = 34;
inline constexpr std::size_t kBytesPerSequence = 4 + 8, kBytesPerDocument = 8;

}  // namespace trellis::trainer
