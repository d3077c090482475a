#pragma once

#include <map>
#include <string>
#include <vector>

#include "trainer/config/model_properties.h"

namespace trellis::checkpoint {

/// A checkpoint's description of the model that its weights belong to.
struct SavedModel {
  std::string where;            ///< the file that says it
  trainer::ModelSection model;  ///< what it does not say is as the configuration has it
  /// The file's names of properties, by the keys here; none: the same names.
  std::map<std::string, std::string> names = {};
  /// Properties that no key here has, other than what is computed here.
  std::vector<trainer::ModelDifference> others = {};
  std::vector<std::string> unstated = {};  ///< properties that it should say, and does not
};

}  // namespace trellis::checkpoint
