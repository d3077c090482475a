#pragma once

#include "trainer/files/checkpoint/conversion/compare.h"
#include "trainer/files/checkpoint/conversion/conversion.h"
#include "trainer/files/checkpoint/formats/hugging_face/hub_writer.h"

namespace trellis::checkpoint {

/// Opens the folder that an export has written, as any reader does, and compares every bit of every
/// weight with what `source` gives for `plan`: converted to the types of the plan, without the rows
/// that pad the vocabulary. Side A of the differences is the source. The small files must be those
/// of `files`. Needs memory for a piece of a tensor of each. `progress`: tensors that are done, and
/// their number. Throws ConfigError when the folder cannot be read, or a small file differs.
[[nodiscard]] Comparison verify_export(const TensorSource& source,
                                       const hugging_face::ExportPlan& plan,
                                       const hugging_face::SideFiles& files, const Place& folder,
                                       const Progress& progress);

/// Compares every bit of every weight of a `written` checkpoint with those of the source that it
/// was made of, converted to its types. Side A of the differences is the source.
[[nodiscard]] Comparison verify_import(const TensorSource& source, const TensorSource& written,
                                       const Progress& progress);

}  // namespace trellis::checkpoint
