#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"

/// The YAML document as base/yaml/yaml.cpp works on it. Internal to base/.
namespace trellis::yaml {

struct Node;
using NodePtr = std::shared_ptr<Node>;

struct Node {
  enum class Kind { kNull, kScalar, kMap, kList };
  enum class Resolution { kPending, kRunning, kDone };

  Kind kind = Kind::kNull;
  std::string origin;   ///< "file:12" or "command line"
  std::string text;     ///< kScalar
  bool quoted = false;  ///< kScalar: a quoted "1" is text, a plain 1 is a number
  std::vector<std::pair<std::string, NodePtr>> entries;  ///< kMap, in file order, keys unique
  std::unordered_map<std::string, std::size_t>
      index;                    ///< kMap: keys of a long one, places in `entries`; made by append()
  std::vector<NodePtr> items;   ///< kList
  std::set<std::string> known;  ///< kMap: keys that a reader asked for
  Resolution resolution = Resolution::kPending;  ///< of a scalar's interpolations
  /// kNull, because what it refers to cannot be resolved: that is a problem already.
  bool unresolved = false;

  /// The value's place, or null.
  [[nodiscard]] NodePtr* place(const std::string& key);
  [[nodiscard]] NodePtr find(const std::string& key) const;
  /// `key` is new.
  NodePtr& append(const std::string& key, NodePtr value);
  [[nodiscard]] std::vector<std::string> keys() const;
};

/// Deep copies (aliases, interpolations) draw on one allowance, so that a small file cannot unfold
/// into a huge document.
struct CopyBudget {
  std::int64_t nodes = 1'000'000;
};
/// Throws ConfigError when the budget is spent. The copy keeps the origins of the source.
[[nodiscard]] NodePtr deep_copy(const Node& source, CopyBudget& budget);

struct Document {
  std::string name;
  NodePtr root;  ///< kMap
  Problems problems;
  std::vector<std::string> addresses_with_keys;  ///< "file:line:key" of each
  CopyBudget budget;
};

/// Adds a problem at "file:line:key". One line, whatever names and values it holds.
void add_problem(Document& document, const std::string& where, const std::string& text);

/// Throws ConfigError "name:line:column: …" when the text is not YAML; duplicate keys become
/// problems.
void parse_into(Document& document, const std::string& text);

/// "model.optim.lr=1e-3": the value is YAML; missing maps on the path are created; a number in the
/// path indexes a list.
void apply_override(Document& document, const std::string& override_text);

/// Replaces every `${…}` by what it names.
void interpolate(Document& document);
/// Takes the keys out of addresses, and notes where they were.
void take_out_keys(Document& document);

/// The node at a dotted path, or null. An empty path is the root.
[[nodiscard]] NodePtr find_path(const NodePtr& root, const std::string& path);
[[nodiscard]] std::vector<std::string> split_path(const std::string& path);
[[nodiscard]] std::string join_path(const std::string& parent, const std::string& key);

}  // namespace trellis::yaml
