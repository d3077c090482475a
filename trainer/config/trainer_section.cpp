#include <fmt/format.h>

#include "trainer/config/sections.h"

namespace trellis::trainer {
namespace {

/// NxDT's limit -1 means "until the epochs are over"; a run of ours ends by steps.
std::int64_t read_max_steps(SectionReader& reader) {
  const auto steps = reader.required<std::int64_t>("max_steps");
  if (reader.good({"max_steps"}) && steps < 1) {
    reader.problem("max_steps", fmt::format("must be at least 1, got {}: a run ends by steps", steps));
  }
  return steps;
}

}  // namespace

TrainerSection read_trainer(SectionReader& reader) {
  TrainerSection section;
  section.devices = reader.required_positive("devices");
  section.num_nodes = reader.positive("num_nodes", section.num_nodes);
  section.max_steps = read_max_steps(reader);
  section.log_every_n_steps = reader.positive("log_every_n_steps", section.log_every_n_steps);
  section.gradient_clip_val = reader.optional<double>("gradient_clip_val");
  if (section.gradient_clip_val && *section.gradient_clip_val <= 0) {
    reader.problem("gradient_clip_val", fmt::format("must be greater than 0, got {}; null switches clipping off", *section.gradient_clip_val));
  }
  return section;
}

}  // namespace trellis::trainer
