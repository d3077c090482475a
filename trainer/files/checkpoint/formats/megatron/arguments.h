#pragma once

#include <string>

#include "trainer/files/checkpoint/containers/value.h"
#include "trainer/files/checkpoint/formats/saved_model.h"

namespace trellis::checkpoint::megatron {

/// The model that `args` of a folder's common.pt describes: Megatron-LM's command line, as it keeps
/// it. `like`: the model of the configuration, where they say nothing. Throws ConfigError, with
/// `where`, for a value that is of another type.
[[nodiscard]] SavedModel model_of_arguments(const Value& args, const trainer::ModelSection& like,
                                            const std::string& where);

/// Sets what model_of_arguments() reads, except for sizes, in the dict of the arguments. What
/// Megatron-LM has no argument for is left out.
void set_arguments(const trainer::ModelSection& model, Value& arguments);

}  // namespace trellis::checkpoint::megatron
