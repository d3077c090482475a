#pragma once

#include <string>

#include "trainer/files/checkpoint/storage/place.h"

/// The folder of a conversion's result: next to it is a mark, "<name>-unfinished", until it is
/// complete. The next conversion removes what an interrupted one left there, and nothing else.
namespace trellis::checkpoint {

/// Throws ConfigError when a conversion cannot begin at `place`: there is something, and no mark of
/// an unfinished conversion. `complete`: the file that a complete result has.
void check_new_folder(const Place& place, const std::string& complete);
/// Removes what an unfinished conversion left, and sets the mark.
void begin_new_folder(const Place& place);
/// The result is complete.
void end_new_folder(const Place& place);

}  // namespace trellis::checkpoint
