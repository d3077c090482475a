#pragma once

#include "trainer/files/checkpoint/formats/native/manifest.h"
#include "trainer/files/checkpoint/storage/place.h"

namespace trellis::checkpoint::native {

/// Hashes of the files of a folder that another program wrote: `trellis checkpoint verify
/// --write-manifest` makes it. Its form is that of manifest.json, without tensors, and its name is
/// another one: what the folder is does not change.
inline constexpr const char* kChecksumsFile = "trellis_manifest.json";

/// Every file below `place` but those that hold hashes. Reads all of them.
[[nodiscard]] Manifest hash_folder(const Place& place);

/// The same place; where it has kChecksumsFile, each file is compared with that when it is opened
/// for the first time. Throws ConfigError for a damaged one; opening a file does for one that is
/// not what was hashed, or was not there.
[[nodiscard]] Place with_checksums(Place place);

/// The problem with a file that differs from `expected`; "": none.
[[nodiscard]] std::string damage_of(Storage& storage, const std::string& path,
                                    const StoredFile& expected);

}  // namespace trellis::checkpoint::native
