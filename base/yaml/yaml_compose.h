#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/yaml/yaml.h"

namespace trellis {

/// An entry of a list `defaults`, and what became of it.
struct YamlDefault {
  enum class Kind {
    kTaken,    ///< the keys of a file, or of the list's own file, are in the document
    kNothing,  ///< it asks for none
    kMissing   ///< its file is not there, or the form of the entry is not supported
  };
  std::string name;   ///< "defaults.0"
  std::string entry;  ///< "optim: adam"
  std::string where;  ///< "file:12"
  Kind kind = Kind::kTaken;
  std::string note = {};  ///< the file; why there is none
};

struct ComposedYaml {
  YamlDocument document;
  std::vector<YamlDefault> defaults;  ///< in the order in which they are merged
};

/// A configuration of Hydra: `file` and the files that its list `defaults` names, later ones over
/// earlier ones, key by key. `group: option` is group/option.yaml in the folder of `file`, below
/// the keys of its group; a name alone is a file there. `optional`, `override`, `@package`, a
/// comment `# @package` in a file's head, `_self_` and lists in those files act as in Hydra 1.1 and
/// later. `overrides`: group=option chooses another file; key.path=value is applied to the result,
/// before interpolation. `read`: the text of a file. Throws ConfigError as YamlDocument::load, and
/// for files that include each other.
[[nodiscard]] ComposedYaml compose_yaml(
    const std::filesystem::path& file, const std::vector<std::string>& overrides,
    const std::function<std::string(const std::filesystem::path&)>& read);

}  // namespace trellis
