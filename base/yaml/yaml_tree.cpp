#include "base/yaml/yaml_tree.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>
#include <sstream>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include "base/address.h"
#include "base/escape.h"
#include "base/files/input_file.h"

namespace trellis::yaml {

NodePtr* Node::place(const std::string& key) {
  if (!index.empty()) {
    const auto found = index.find(key);
    return found == index.end() ? nullptr : &entries[found->second].second;
  }
  const auto found = std::ranges::find(entries, key, &std::pair<std::string, NodePtr>::first);
  return found == entries.end() ? nullptr : &found->second;
}

NodePtr Node::find(const std::string& key) const {
  const NodePtr* const found = const_cast<Node*>(this)->place(key);
  return found == nullptr ? nullptr : *found;
}

NodePtr& Node::append(const std::string& key, NodePtr value) {
  constexpr std::size_t kShort = 32;  // searched one by one, faster than by hash
  entries.emplace_back(key, std::move(value));
  if (entries.size() > kShort) {
    for (std::size_t i = index.size(); i < entries.size(); ++i) index.emplace(entries[i].first, i);
  }
  return entries.back().second;
}

namespace {

void take_out_keys_of(Document& document, Node& node, const std::string& path) {
  if (node.kind == Node::Kind::kScalar && has_keys(node.text)) {
    node.text = without_keys(node.text);
    document.addresses_with_keys.push_back(node.origin + ":" + path);
  }
  for (const auto& [key, value] : node.entries)
    take_out_keys_of(document, *value, join_path(path, key));
  for (std::size_t i = 0; i < node.items.size(); ++i)
    take_out_keys_of(document, *node.items[i], join_path(path, std::to_string(i)));
}

}  // namespace

void take_out_keys(Document& document) { take_out_keys_of(document, *document.root, ""); }

void add_problem(Document& document, const std::string& where, const std::string& text) {
  document.problems.add(terminal_line(where), terminal_line(text));
}

std::vector<std::string> Node::keys() const {
  std::vector<std::string> out;
  for (const auto& entry : entries) out.push_back(entry.first);
  return out;
}

NodePtr deep_copy(const Node& source, CopyBudget& budget) {
  if (--budget.nodes < 0) {
    throw ConfigError(source.origin +
                      ": aliases or interpolations unfold to more than a million values; expected "
                      "a finite, small document");
  }
  auto copy = std::make_shared<Node>(source);
  for (auto& entry : copy->entries) entry.second = deep_copy(*entry.second, budget);
  for (NodePtr& item : copy->items) item = deep_copy(*item, budget);
  return copy;
}

std::vector<std::string> split_path(const std::string& path) {
  std::vector<std::string> parts;
  std::stringstream stream(path);
  for (std::string part; std::getline(stream, part, '.');) parts.push_back(part);
  if (!path.empty() && path.back() == '.') parts.emplace_back();
  return parts;
}

std::string join_path(const std::string& parent, const std::string& key) {
  return parent.empty() ? key : parent + "." + key;
}

namespace {

std::optional<std::size_t> as_index(const std::string& text) {
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return index;
}

NodePtr child(const Node& node, const std::string& key) {
  if (node.kind == Node::Kind::kMap) return node.find(key);
  if (node.kind != Node::Kind::kList) return nullptr;
  const auto index = as_index(key);
  return index && *index < node.items.size() ? node.items[*index] : nullptr;
}

/// Builds the tree from the parser's events: yaml-cpp's own nodes hide duplicate keys and the
/// quoting of scalars.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(std::string origin_prefix, bool with_lines, Document& document)
      : prefix_(std::move(origin_prefix)), with_lines_(with_lines), document_(document) {}

  [[nodiscard]] NodePtr root() const { return root_; }
  [[nodiscard]] const std::string& begins() const {
    return begins_;
  }  ///< "file:12" of the last document

  void OnDocumentStart(const YAML::Mark& mark) override { begins_ = origin(mark); }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (expects_key()) return begin_key("null", mark);
    add(make(Node::Kind::kNull, mark), anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (expects_key()) refuse_key(mark);
    const auto found = anchors_.find(anchor);
    const bool inside_itself = std::any_of(open_.begin(), open_.end(), [&](const Open& o) {
      return found != anchors_.end() && o.node == found->second;
    });
    if (found == anchors_.end() || inside_itself)
      throw ConfigError(origin(mark) + ": an alias refers to a value that contains it");
    add(deep_copy(*found->second, document_.budget), YAML::NullAnchor);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    if (expects_key()) return begin_key(value, mark, tag == "?" && value == "<<");
    NodePtr node = make(Node::Kind::kScalar, mark);
    node->text = value;
    node->quoted = tag != "?";
    add(node, anchor);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(Node::Kind::kList, mark, anchor);
  }
  void OnSequenceEnd() override { open_.pop_back(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(Node::Kind::kMap, mark, anchor);
  }
  void OnMapEnd() override {
    merge_into(open_.back());
    open_.pop_back();
  }

 private:
  struct Open {
    NodePtr node;
    std::string path;
    std::optional<std::string> key;  ///< of a map: read, its value comes next
    std::string key_origin;
    bool key_merges = false;           ///< it is "<<", in no quotes
    std::vector<NodePtr> merged = {};  ///< of a map: the values of its merge keys
  };

  [[nodiscard]] std::string origin(const YAML::Mark& mark) const {
    return with_lines_ ? prefix_ + ":" + std::to_string(mark.line + 1) : prefix_;
  }
  [[nodiscard]] NodePtr make(Node::Kind kind, const YAML::Mark& mark) const {
    auto node = std::make_shared<Node>();
    node->kind = kind;
    node->origin = origin(mark);
    return node;
  }
  [[nodiscard]] bool expects_key() const {
    return !open_.empty() && open_.back().node->kind == Node::Kind::kMap && !open_.back().key;
  }
  [[noreturn]] void refuse_key(const YAML::Mark& mark) const {
    throw ConfigError(
        origin(mark) +
        ": expected a plain name as key, got a list or a mapping (is a closing bracket missing?)");
  }

  void begin_key(const std::string& key, const YAML::Mark& mark, bool merges = false) {
    open_.back().key = key;
    open_.back().key_merges = merges;
    open_.back().key_origin = origin(mark);
  }

  void open(Node::Kind kind, const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (expects_key()) refuse_key(mark);
    NodePtr node = make(kind, mark);
    const std::string path = next_path();
    add(node, anchor);
    open_.push_back({.node = node, .path = path, .key = {}, .key_origin = ""});
  }

  /// Dotted path of the value that is about to be added.
  [[nodiscard]] std::string next_path() const {
    if (open_.empty()) return "";
    const Open& parent = open_.back();
    return join_path(parent.path,
                     parent.key ? *parent.key : std::to_string(parent.node->items.size()));
  }

  void add(const NodePtr& node, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) anchors_[anchor] = node;
    if (open_.empty()) {
      root_ = node;
      return;
    }
    Open& parent = open_.back();
    if (parent.node->kind == Node::Kind::kList) {
      parent.node->items.push_back(node);
      return;
    }
    add_entry(parent, node);
  }

  void add_entry(Open& parent, const NodePtr& node) {
    const std::string key = *parent.key;
    parent.key.reset();
    node->origin = parent.key_origin;  // a map's value is reported where its key is
    if (parent.key_merges) return parent.merged.push_back(node);  // when they are complete
    if (const NodePtr first = parent.node->find(key)) {
      add_problem(document_, parent.key_origin + ":" + join_path(parent.path, key),
                  "duplicate key, first given at " + first->origin);
      return;
    }
    parent.node->append(key, node);
  }

  /// The keys of `<<: MAPPING` or of a list of mappings come first, as PyYAML has them, and only
  /// where the mapping itself and an earlier one have no such key.
  static void merge_into(Open& map) {
    if (map.merged.empty()) return;
    auto whole = std::make_shared<Node>();
    for (const NodePtr& value : map.merged) {
      const bool is_list = value->kind == Node::Kind::kList;
      for (const NodePtr& source : is_list ? value->items : std::vector<NodePtr>{value}) {
        if (source->kind != Node::Kind::kMap)
          throw ConfigError(value->origin + ":" + join_path(map.path, "<<") +
                            ": a merge key: expected a mapping or a list of mappings, such as "
                            "*anchor, got something else");
        for (const auto& [key, entry] : source->entries) {
          if (map.node->find(key) == nullptr && whole->find(key) == nullptr)
            whole->append(key, entry);
        }
      }
    }
    for (const auto& [key, entry] : map.node->entries) whole->append(key, entry);
    map.node->entries = std::move(whole->entries);
    map.node->index = std::move(whole->index);
  }

  std::string prefix_;
  std::string begins_;
  bool with_lines_;
  Document& document_;
  NodePtr root_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, NodePtr> anchors_;
};

/// Null when the text holds no document.
NodePtr parse_text(Document& document, const std::string& text, const std::string& origin,
                   bool with_lines) {
  require_utf8(text, origin);
  std::istringstream stream(text);
  TreeBuilder builder(origin, with_lines, document);
  try {
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) return nullptr;
    const NodePtr root = builder.root();
    if (parser.HandleNextDocument(builder))
      throw ConfigError(builder.begins() + ": expected one YAML document, got several ('---')");
    return root;
  } catch (const YAML::Exception& error) {
    const std::string place = error.mark.is_null() || !with_lines
                                  ? origin
                                  : origin + ":" + std::to_string(error.mark.line + 1) + ":" +
                                        std::to_string(error.mark.column + 1);
    throw ConfigError(place + ": not valid YAML: " + error.msg);
  }
}

}  // namespace

NodePtr find_path(const NodePtr& root, const std::string& path) {
  NodePtr node = root;
  for (const std::string& part : split_path(path)) {
    if (node == nullptr) return nullptr;
    node = child(*node, part);
  }
  return node;
}

void parse_into(Document& document, const std::string& text) {
  document.root = parse_text(document, text, document.name, true);
  if (document.root == nullptr || document.root->kind == Node::Kind::kNull) {
    document.root = std::make_shared<Node>();
    document.root->kind = Node::Kind::kMap;
    document.root->origin = document.name + ":1";
  }
  if (document.root->kind != Node::Kind::kMap) {
    throw ConfigError(document.root->origin +
                      ": expected a mapping (key: value) at the top of the file");
  }
}

namespace {

constexpr const char* kCommandLine = "command line";

NodePtr make_map() {
  auto node = std::make_shared<Node>();
  node->kind = Node::Kind::kMap;
  node->origin = kCommandLine;
  return node;
}

void set_origin(Node& node) {
  node.origin = kCommandLine;
  for (auto& entry : node.entries) set_origin(*entry.second);
  for (NodePtr& item : node.items) set_origin(*item);
}

/// The place that `key` names inside `parent`, made when missing; null when parent cannot hold it.
NodePtr* slot(Node& parent, const std::string& key) {
  if (parent.kind == Node::Kind::kNull) parent.kind = Node::Kind::kMap;
  if (parent.kind == Node::Kind::kMap) {
    NodePtr* const found = parent.place(key);
    return found != nullptr ? found : &parent.append(key, make_map());
  }
  if (parent.kind != Node::Kind::kList) return nullptr;
  const auto index = as_index(key);
  return index && *index < parent.items.size() ? &parent.items[*index] : nullptr;
}

/// Letters, digits and a few signs after a letter or digit: nothing that YAML reads as anything
/// but a plain scalar, except the words for null.
bool is_plain_word(const std::string& value) {
  const auto alphanumeric = [](unsigned char c) { return std::isalnum(c) != 0 && c < 0x80; };
  if (value.empty() || !alphanumeric(static_cast<unsigned char>(value.front()))) return false;
  const bool words = std::all_of(value.begin(), value.end(), [&](char c) {
    return alphanumeric(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-' ||
           c == '+' || c == '/';
  });
  return words && value != "null" && value != "Null" && value != "NULL";
}

NodePtr parse_value(Document& document, const std::string& key, const std::string& value) {
  if (is_plain_word(value)) {  // nearly all are, and a parser is slow to make
    auto word = std::make_shared<Node>();
    word->kind = Node::Kind::kScalar;
    word->text = value;
    word->origin = kCommandLine;
    return word;
  }
  NodePtr node = parse_text(document, value, std::string(kCommandLine) + ":" + key, false);
  if (node == nullptr ||
      (node->kind == Node::Kind::kNull && value.find_first_not_of(' ') == std::string::npos)) {
    node =
        std::make_shared<Node>();  // "key=" sets the empty text, as in Hydra; "key=null" sets null
    node->kind = Node::Kind::kScalar;
    node->quoted = true;
  }
  set_origin(*node);
  return node;
}

}  // namespace

void apply_override(Document& document, const std::string& override_text) {
  const std::size_t equals = override_text.find('=');
  const std::size_t start = override_text.find_first_not_of(
      '+');  // Hydra's "+key=value" asks for what is allowed here anyway
  if (equals == std::string::npos || start >= equals) {
    add_problem(document, kCommandLine, "expected key.path=value, got '" + override_text + "'");
    return;
  }
  const std::string path = override_text.substr(start, equals - start);
  const std::vector<std::string> parts = split_path(path);
  if (std::find(parts.begin(), parts.end(), "") != parts.end()) {
    add_problem(document, kCommandLine,
                "expected key.path=value, got an empty name in '" + override_text + "'");
    return;
  }
  NodePtr* place = &document.root;
  std::string walked;
  for (const std::string& part : parts) {
    Node& parent = **place;
    place = slot(parent, part);
    if (place == nullptr) {
      const char* kind =
          parent.kind == Node::Kind::kList ? "a list without that index" : "a single value";
      add_problem(document, std::string(kCommandLine) + ":" + path,
                  "cannot set '" + part + "': " + walked + " (" + parent.origin + ") is " + kind);
      return;
    }
    walked = join_path(walked, part);
  }
  *place = parse_value(document, path, override_text.substr(equals + 1));
}

}  // namespace trellis::yaml
