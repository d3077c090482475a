#pragma once

/// The machine of those who name none.
namespace trellis::sim {

/// Of a training whose YAML has no `instance`: NxDT's examples and its documentation run on it.
inline constexpr const char* kTrainingInstance = "trn1.32xlarge";
/// Of what has no YAML (kernels, collectives, Python programs): the newest that most users have.
inline constexpr const char* kProgramInstance = "trn2.48xlarge";

}  // namespace trellis::sim
