#include <utility>

#include "trainer/config/sections.h"

namespace trellis::trainer {

ExpManagerSection read_exp_manager(SectionReader& reader) {
  ExpManagerSection section;
  section.explicit_log_dir = reader.get<std::string>("explicit_log_dir", "");
  section.exp_dir = reader.get<std::string>("exp_dir", section.exp_dir);
  section.name = reader.get<std::string>("name", section.name);
  section.version = reader.get<std::string>("version", "");
  section.use_datetime_version = reader.get<bool>("use_datetime_version", section.use_datetime_version);
  section.create_tensorboard_logger = reader.get<bool>("create_tensorboard_logger", section.create_tensorboard_logger);
  // Both are parts of a path below exp_dir: an empty one would make two runs share a directory.
  for (const auto& [key, value] : {std::pair{"exp_dir", &section.exp_dir}, std::pair{"name", &section.name}}) {
    if (reader.good({key}) && value->empty()) reader.problem(key, "must not be empty; remove it for the default");
  }
  return section;
}

}  // namespace trellis::trainer
