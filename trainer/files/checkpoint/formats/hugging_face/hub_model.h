#pragma once

#include <string>

#include "trainer/config/model_section.h"
#include "trainer/files/checkpoint/formats/hugging_face/hub_config.h"

namespace trellis::checkpoint::hugging_face {

/// The model that transformers builds from the text of a config.json; a key that is absent there
/// has transformers' default of its family. Only what model_properties() lists, and the vocabulary,
/// are those of the file. Throws ConfigError, with `where`, for what no model here has.
[[nodiscard]] trainer::ModelSection hub_model(const HubConfig& config, const std::string& text,
                                              const std::string& where);

/// The name of a property in a config.json: "rms_norm_eps" for "model.layernorm_epsilon"; "": the
/// same name as here, or no name there.
[[nodiscard]] std::string hub_name(const HubConfig& config, const std::string& property);

}  // namespace trellis::checkpoint::hugging_face
