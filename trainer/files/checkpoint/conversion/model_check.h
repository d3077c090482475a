#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trainer/config/run_config.h"
#include "trainer/files/checkpoint/containers/value.h"
#include "trainer/files/checkpoint/formats/tensor_source.h"

/// The one rule for all ways in which weights are loaded: a model of a checkpoint that differs from
/// the configuration's is refused, property by property, unless exp_manager.accept_differences
/// names the property. Settings that make another training of the same model are reported.
namespace trellis::checkpoint {

/// Compares what a checkpoint of any format says of its model. `step`: of a training that goes on;
/// none: its weights alone are taken. Throws ConfigError with every difference and the options that
/// let them pass. A checkpoint that says nothing of its model is named in one line.
void check_saved_model(const TensorSource& source, const trainer::RunConfig& config,
                       std::optional<std::int64_t> step);

/// The same for the text of the configuration that a run saved; "": it saved none. `where`: the
/// file.
void check_saved_configuration(const std::string& text, const std::string& where,
                               const trainer::RunConfig& config, std::optional<std::int64_t> step);

/// The same for the text of a config.json, which weights of the configuration's model get.
void check_hub_config(const std::string& text, const std::string& where,
                      const trainer::RunConfig& config);

/// The weights among the keys of a checkpoint that `asked` does not have. Tables that follow from
/// the configuration are none.
[[nodiscard]] std::vector<std::string> unused_weights(const std::vector<std::string>& stored,
                                                      const std::set<std::string>& asked);
/// Throws ConfigError that names them, or says it (with `speaks`) where they are accepted.
/// `missing`: weights of the model that the checkpoint does not have, which are named next to them.
void judge_unused_weights(const std::vector<std::string>& unused, const std::string& address,
                          const trainer::RunConfig& config, bool speaks = true,
                          const std::vector<std::string>& missing = {});

/// The configuration in a run's user_content.pt; "": it has none, or another program wrote it.
[[nodiscard]] std::string saved_configuration(const Value& user_content);

}  // namespace trellis::checkpoint
