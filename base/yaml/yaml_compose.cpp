#include "base/yaml/yaml_compose.h"

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/yaml/yaml_tree.h"

namespace trellis {
namespace {

using yaml::Node;
using yaml::NodePtr;
namespace fs = std::filesystem;
using Kind = YamlDefault::Kind;

constexpr const char* kKey = "defaults";
constexpr const char* kSelf = "_self_";
constexpr std::string_view kGlobal = "_global_";
constexpr std::size_t kMostFiles = 64;  ///< lists that include each other's files grow fast

/// Where an entry's file is looked for, and below which keys its content goes.
struct Place {
  std::string folder;   ///< from that of the first file; "": there
  std::string package;  ///< dotted; "": the top
};

/// "optional group@package: option", "name@package"
struct Entry {
  std::string group;   ///< "": the entry is a name alone
  std::string option;  ///< of a name alone: it
  std::optional<std::string> package;
  bool is_optional = false, is_override = false, is_null = false;
};

std::string dotted(std::string path) {
  std::ranges::replace(path, '/', '.');
  return path;
}

/// The part of the joined path after the last `_global_`, which begins at the top.
std::string below(const std::string& parent, const std::string& package) {
  if (package == "_here_" || package.empty()) return parent;
  const std::string joined = yaml::join_path(parent, package);
  const std::size_t at = joined.rfind(kGlobal);
  if (at == std::string::npos) return joined;
  const std::string rest = joined.substr(at + kGlobal.size());
  return rest.starts_with('.') ? rest.substr(1) : rest;
}

/// The package of a file's head, such as "# @package _global_".
std::optional<std::string> package_of(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with('#') && line.find_first_not_of(" \t\r") != std::string::npos) break;
    std::istringstream words(line);
    std::string sign, directive, package;
    words >> sign >> directive >> package;
    if (sign == "#" && directive == "@package" && !package.empty()) return package;
  }
  return std::nullopt;
}

/// Takes "@package" off the end of `name`.
std::optional<std::string> take_package(std::string& name) {
  const std::size_t at = name.find('@');
  if (at == std::string::npos) return std::nullopt;
  std::string package = name.substr(at + 1);
  name.resize(at);
  return package;
}

Entry entry_of(std::string head, const Node& option) {
  Entry entry;
  for (auto [word, flag] :
       {std::pair{"optional ", &entry.is_optional}, std::pair{"override ", &entry.is_override}}) {
    if (!head.starts_with(word)) continue;
    *flag = true;
    head.erase(0, std::string_view(word).size());
  }
  entry.package = take_package(head);
  entry.group = head;
  entry.is_null = option.kind == Node::Kind::kNull;
  entry.option = option.text;
  return entry;
}

/// Later values win; mappings are merged key by key.
void merge(NodePtr& target, const NodePtr& source) {
  if (target->kind != Node::Kind::kMap || source->kind != Node::Kind::kMap) {
    target = source;
    return;
  }
  for (const auto& [key, value] : source->entries) {
    if (NodePtr* const place = target->place(key)) {
      merge(*place, value);
    } else {
      target->append(key, value);
    }
  }
}

NodePtr wrapped(NodePtr node, const std::string& package) {
  const std::vector<std::string> parts = yaml::split_path(package);
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    auto outer = std::make_shared<Node>();
    outer->kind = Node::Kind::kMap;
    outer->origin = node->origin;
    outer->append(*part, std::move(node));
    node = std::move(outer);
  }
  return node;
}

/// Its own keys without the list, which is returned.
NodePtr take_list(NodePtr& own) {
  const NodePtr list = own->find(kKey);
  if (list == nullptr || list->kind != Node::Kind::kList) return nullptr;
  auto rest = std::make_shared<Node>();
  rest->kind = Node::Kind::kMap;
  rest->origin = own->origin;
  for (const auto& [key, value] : own->entries)
    if (key != kKey) rest->append(key, value);
  own = std::move(rest);
  return list;
}

bool leaves_folder(const fs::path& path) {
  const fs::path normal = path.lexically_normal();
  return normal.is_absolute() || (!normal.empty() && *normal.begin() == "..");
}

class Composer {
 public:
  Composer(yaml::Document& document, const std::vector<std::string>& overrides,
           std::function<std::string(const fs::path&)> read)
      : document_(document), overrides_(overrides), read_(std::move(read)) {
    root_ = std::make_shared<Node>();
    root_->kind = Node::Kind::kMap;
  }

  NodePtr run(const fs::path& file) {
    folder_ = file.parent_path();
    root_->origin = file.string() + ":1";
    add_file(file, {}, std::nullopt, file.string());
    for (const auto& [group, choice] : choices_)
      if (!choice.is_used)
        taken_.push_back({choice.name, "override " + group + ": " + choice.option, choice.where,
                          Kind::kMissing, "no entry of `defaults` has this group: remove it"});
    return root_;
  }
  [[nodiscard]] std::vector<YamlDefault> taken() && { return std::move(taken_); }
  /// That chose no file.
  [[nodiscard]] const std::vector<std::string>& overrides() const { return overrides_; }

 private:
  struct Choice {
    std::string option, name, where;
    bool is_used = false;
  };

  void add_file(const fs::path& file, Place place, const std::optional<std::string>& package,
                const std::string& where) {
    const std::string path = file.string();
    if (std::ranges::find(open_, path) != open_.end())
      throw ConfigError(where + ": " + path + " is included inside itself: remove the entry");
    if (++files_ > kMostFiles)
      throw ConfigError(where + ": `defaults` name more than 64 files: give the composed file");
    const std::string text = read_(file);
    document_.name = path;
    yaml::parse_into(document_, text);
    NodePtr own = document_.root;
    if (!package) place.package = below(parent_package_, package_of(text).value_or(place.package));
    const NodePtr list = take_list(own);
    own = wrapped(std::move(own), place.package);
    open_.push_back(path);
    const bool names_itself = list != nullptr && std::ranges::any_of(list->items, is_self);
    if (!names_itself) merge(root_, own);
    if (list != nullptr) add_list(*list, own, place);
    open_.pop_back();
  }

  static bool is_self(const NodePtr& item) {
    return item->kind == Node::Kind::kScalar && item->text == kSelf;
  }

  void add_list(const Node& list, const NodePtr& own, const Place& place) {
    note_overrides(list);
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      const Node& item = *list.items[i];
      item_ = {yaml::join_path(kKey, std::to_string(i)), item.text, item.origin};
      if (is_self(list.items[i])) {
        say(Kind::kTaken, "the keys of this file");
        merge(root_, own);
      } else if (item.kind == Node::Kind::kScalar) {
        add_name(item.text, place);
      } else if (item.kind == Node::Kind::kMap && item.entries.size() == 1) {
        add_group(item.entries.front().first, *item.entries.front().second, place);
      } else {
        item_.entry = "null";
        say(Kind::kMissing, "expected a name or `group: option`");
      }
    }
  }

  /// Records the entries that override the option of a group. They count wherever they are in a
  /// list; those of the outer file come first.
  void note_overrides(const Node& list) {
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      const Node& item = *list.items[i];
      if (item.kind != Node::Kind::kMap || item.entries.size() != 1) continue;
      const auto& [head, option] = item.entries.front();
      const Entry entry = entry_of(head, *option);
      if (entry.is_override && !is_of_hydra(entry.group))
        choices_.try_emplace(entry.group,
                             Choice{entry.is_null ? "null" : entry.option,
                                    yaml::join_path(kKey, std::to_string(i)), item.origin});
    }
  }

  static bool is_of_hydra(std::string_view group) {
    if (group.starts_with('/')) group.remove_prefix(1);
    return group == "hydra" || group.starts_with("hydra/");
  }

  void add_name(std::string name, const Place& place) {
    const std::optional<std::string> package = take_package(name);
    const std::size_t slash = name.rfind('/');
    const std::string group = slash == std::string::npos ? "" : name.substr(0, slash);
    add_option({group, name.substr(slash + 1), package}, place);
  }

  void add_group(const std::string& head, const Node& option, const Place& place) {
    Entry entry = entry_of(head, option);
    if (option.kind == Node::Kind::kList) {
      for (const NodePtr& each : option.items) add_entry(entry_of(head, *each), head, place);
      if (option.items.empty()) say(Kind::kNothing, "it names no file");
    } else {
      add_entry(std::move(entry), head, place);
    }
  }

  void add_entry(Entry entry, const std::string& head, const Place& place) {
    item_.entry = head + ": " + (entry.is_null ? "null" : entry.option);
    if (is_of_hydra(entry.group)) return say(Kind::kNothing, "it is about Hydra itself");
    if (entry.is_override) return say(Kind::kNothing, "it chooses the option of an earlier entry");
    choose(entry);
    if (entry.is_null) return say(Kind::kNothing, "it names no file");
    if (entry.option == "?\?\?")
      return say(Kind::kMissing, "choose one on the command line: " + entry.group + "=OPTION");
    add_option(entry, place);
  }

  /// By the command line, or by an `override` of a list.
  void choose(Entry& entry) {
    const auto given = std::ranges::find_if(
        overrides_, [&](const std::string& text) { return text.starts_with(entry.group + "="); });
    std::optional<std::string> option;
    if (const auto chosen = choices_.find(entry.group); chosen != choices_.end()) {
      chosen->second.is_used = true;
      option = chosen->second.option;
    }
    if (given != overrides_.end()) {
      option = given->substr(entry.group.size() + 1);
      overrides_.erase(given);
    }
    if (!option) return;
    entry.option = *option;
    entry.is_null = *option == "null";
  }

  void add_option(const Entry& entry, const Place& place) {
    const bool from_top = entry.group.starts_with('/');
    const std::string group = from_top ? entry.group.substr(1) : entry.group;
    const fs::path folder = from_top ? fs::path(group) : fs::path(place.folder) / group;
    const std::string name =
        entry.option.ends_with(".yaml") ? entry.option : entry.option + ".yaml";
    for (const std::string_view part : {std::string_view(entry.option), std::string_view(group)})
      if (part.find("${") != std::string_view::npos)
        return say(Kind::kMissing, "references in `defaults` are not resolved: write the name");
    const std::string package = entry.package.value_or("");
    if (package.find("_group_") != std::string::npos || package.find("_name_") != std::string::npos)
      return say(Kind::kMissing, "`_group_` and `_name_` are not supported: write the package");
    if (entry.option.empty() || leaves_folder(folder / name))
      return say(Kind::kMissing, "expected a file below the folder of the first one");
    const fs::path file = folder_ / folder / name;
    std::error_code error;
    if (!fs::is_regular_file(file, error))
      return entry.is_optional
                 ? say(Kind::kNothing, "there is no " + file.string() + ", which is optional")
                 : say(Kind::kMissing, "there is no " + file.string() +
                                           ": put it there, or import the composed file, which "
                                           "`--cfg job` prints");
    say(Kind::kTaken, file.string());
    // From here on the entries of that file are read.
    const std::string parent = std::exchange(parent_package_, place.package);
    const Place inner = {folder.lexically_normal().generic_string(),
                         entry.package ? below(place.package, package) : dotted(group)};
    const std::string where = item_.where;
    add_file(file, inner, entry.package, where);
    parent_package_ = parent;
  }

  void say(Kind kind, std::string note) {
    taken_.push_back({item_.name, item_.entry, item_.where, kind, std::move(note)});
  }

  yaml::Document& document_;
  std::vector<std::string> overrides_;
  std::function<std::string(const fs::path&)> read_;
  fs::path folder_;
  NodePtr root_;
  std::string parent_package_;
  std::map<std::string, Choice> choices_;
  std::vector<std::string> open_;  ///< files whose lists are being read
  std::size_t files_ = 0;
  YamlDefault item_;
  std::vector<YamlDefault> taken_;
};

}  // namespace

/// The class that may make a document of several files.
class YamlComposition {
 public:
  static ComposedYaml make(const fs::path& file, const std::vector<std::string>& overrides,
                           const std::function<std::string(const fs::path&)>& read) {
    ComposedYaml composed;
    composed.document = YamlDocument::of_tree([&](yaml::Document& document) {
      Composer composer(document, overrides, read);
      document.root = composer.run(file);
      document.name = file.string();
      for (const std::string& text : composer.overrides()) yaml::apply_override(document, text);
      composed.defaults = std::move(composer).taken();
    });
    return composed;
  }
};

ComposedYaml compose_yaml(const fs::path& file, const std::vector<std::string>& overrides,
                          const std::function<std::string(const fs::path&)>& read) {
  return YamlComposition::make(file, overrides, read);
}

}  // namespace trellis
