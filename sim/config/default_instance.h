#pragma once

/// The machine of those who name none.
namespace trellis::sim {

/// A training whose YAML has no `instance` runs on it, as NxDT's examples and documentation do.
inline constexpr const char* kTrainingInstance = "trn1.32xlarge";
/// Kernels, collectives and Python programs, which have no YAML, run on it: the newest that most
/// users have.
inline constexpr const char* kProgramInstance = "trn2.48xlarge";

}  // namespace trellis::sim
