#include "base/yaml/yaml.h"

#include <charconv>
#include <cmath>
#include <type_traits>

#include <yaml-cpp/emitter.h>

#include "base/check.h"
#include "base/files/input_file.h"
#include "base/nearest.h"
#include "base/yaml/yaml_tree.h"

namespace trellis {

using yaml::Node;
using yaml::NodePtr;

class YamlNodeImpl {
 public:
  YamlNodeImpl(std::shared_ptr<yaml::Document> owner, NodePtr mapping, std::string dotted)
      : document(std::move(owner)), node(std::move(mapping)), path(std::move(dotted)) {}
  std::shared_ptr<yaml::Document> document;
  NodePtr node;  ///< kMap
  std::string path;
};

struct YamlDocument::State {
  std::shared_ptr<yaml::Document> document = std::make_shared<yaml::Document>();
};

namespace {

YamlNodeImpl& checked(const std::shared_ptr<YamlNodeImpl>& impl) {
  TRELLIS_CHECK(impl != nullptr, "a YamlMap that belongs to no document was read");
  return *impl;
}

template <typename T>
struct Reader;

template <>
struct Reader<bool> {
  static constexpr const char* kExpected = "true or false";
  static std::optional<bool> read(const Node& node) {
    if (node.quoted) return std::nullopt;
    if (node.text == "true" || node.text == "True" || node.text == "TRUE") return true;
    if (node.text == "false" || node.text == "False" || node.text == "FALSE") return false;
    return std::nullopt;
  }
};

template <>
struct Reader<std::int64_t> {
  static constexpr const char* kExpected = "an integer";
  static std::optional<std::int64_t> read(const Node& node) {
    if (node.quoted || node.text.starts_with("+-")) return std::nullopt;
    const char* first = node.text.data() + (node.text.starts_with('+') ? 1 : 0);
    const char* last = node.text.data() + node.text.size();
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(first, last, value);
    if (error != std::errc() || end != last) return std::nullopt;
    return value;
  }
};

template <>
struct Reader<int> {
  static constexpr const char* kExpected = "an integer that fits in 32 bits";
  static std::optional<int> read(const Node& node) {
    const auto value = Reader<std::int64_t>::read(node);
    if (!value || *value != static_cast<int>(*value)) return std::nullopt;
    return static_cast<int>(*value);
  }
};

template <>
struct Reader<double> {
  static constexpr const char* kExpected = "a finite number";
  static std::optional<double> read(const Node& node) {
    if (node.quoted || node.text.starts_with("+-")) return std::nullopt;
    const char* first = node.text.data() + (node.text.starts_with('+') ? 1 : 0);
    const char* last = node.text.data() + node.text.size();
    double value = 0;
    const auto [end, error] = std::from_chars(first, last, value);
    if (error != std::errc() || end != last || !std::isfinite(value)) return std::nullopt;
    return value;
  }
};

template <>
struct Reader<std::string> {
  static constexpr const char* kExpected = "a text";
  static std::optional<std::string> read(const Node& node) { return node.text; }
};

template <typename Q>
struct QuantityReader {
  static std::optional<Q> read(const Node& node) { return parse_quantity<Q>(node.text); }
};
template <>
struct Reader<Bytes> : QuantityReader<Bytes> {
  static constexpr const char* kExpected = "a number of bytes with its unit, such as '24 MiB'";
};
template <>
struct Reader<Picoseconds> : QuantityReader<Picoseconds> {
  static constexpr const char* kExpected = "a time with its unit, such as '7 ns'";
};
template <>
struct Reader<Hertz> : QuantityReader<Hertz> {
  static constexpr const char* kExpected = "a frequency with its unit, such as '1.4 GHz'";
};
template <>
struct Reader<BytesPerSecond> : QuantityReader<BytesPerSecond> {
  static constexpr const char* kExpected = "a data rate with its unit, such as '820 GB/s'";
};
template <>
struct Reader<FlopsPerSecond> : QuantityReader<FlopsPerSecond> {
  static constexpr const char* kExpected = "a compute rate with its unit, such as '92 TFLOPS'";
};

std::string describe(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull: return "null";
    case Node::Kind::kScalar:
      return node.quoted ? "the quoted text \"" + node.text + "\"" : "'" + node.text + "'";
    case Node::Kind::kMap: return "a mapping";
    case Node::Kind::kList: return "a list";
  }
  return "";
}

void add_problem(yaml::Document& document, const Node& node, const std::string& path,
                 const std::string& text) {
  yaml::add_problem(document, node.origin + ":" + path, text);
}

template <typename T>
std::optional<T> read_scalar(yaml::Document& document, const Node& node, const std::string& path) {
  if (node.kind == Node::Kind::kScalar) {
    if (auto value = Reader<T>::read(node)) return value;
  }
  add_problem(document, node, path,
              std::string("expected ") + Reader<T>::kExpected + ", got " + describe(node));
  return std::nullopt;
}

template <typename T>
struct is_vector : std::false_type {};
template <typename T>
struct is_vector<std::vector<T>> : std::true_type {};

template <typename T>
std::optional<T> read_value(yaml::Document& document, const Node& node, const std::string& path) {
  if constexpr (!is_vector<T>::value) {
    return read_scalar<T>(document, node, path);
  } else {
    if (node.kind != Node::Kind::kList) {
      add_problem(document, node, path, "expected a list, got " + describe(node));
      return std::nullopt;
    }
    T values;
    for (std::size_t i = 0; i < node.items.size(); ++i) {
      auto value = read_scalar<typename T::value_type>(document, *node.items[i],
                                                       yaml::join_path(path, std::to_string(i)));
      if (value) values.push_back(std::move(*value));
    }
    if (values.size() != node.items.size()) return std::nullopt;
    return values;
  }
}

}  // namespace

template <typename T>
std::optional<T> YamlMap::optional(const std::string& key) const {
  YamlNodeImpl& impl = checked(impl_);
  impl.node->known.insert(key);
  const NodePtr node = impl.node->find(key);
  if (node == nullptr || node->kind == Node::Kind::kNull) return std::nullopt;
  return read_value<T>(*impl.document, *node, yaml::join_path(impl.path, key));
}

template <typename T>
T YamlMap::get(const std::string& key, T default_value) const {
  auto value = optional<T>(key);
  return value ? std::move(*value) : std::move(default_value);
}

template <typename T>
T YamlMap::required(const std::string& key) const {
  YamlNodeImpl& impl = checked(impl_);
  const NodePtr node = impl.node->find(key);
  if (node == nullptr || node->kind == Node::Kind::kNull) {
    impl.node->known.insert(key);
    if (!is_unresolved(key))
      problem(key, node == nullptr ? "this key is required and missing"
                                   : "this key is required, got null");
    return T{};
  }
  return get<T>(key, T{});
}

#define TRELLIS_YAML_TYPE(...)                                                                  \
  template std::optional<__VA_ARGS__> YamlMap::optional<__VA_ARGS__>(const std::string&) const; \
  template __VA_ARGS__ YamlMap::get<__VA_ARGS__>(const std::string&, __VA_ARGS__) const;        \
  template __VA_ARGS__ YamlMap::required<__VA_ARGS__>(const std::string&) const;
TRELLIS_YAML_TYPE(bool)
TRELLIS_YAML_TYPE(int)
TRELLIS_YAML_TYPE(std::int64_t)
TRELLIS_YAML_TYPE(double)
TRELLIS_YAML_TYPE(std::string)
TRELLIS_YAML_TYPE(Bytes)
TRELLIS_YAML_TYPE(Picoseconds)
TRELLIS_YAML_TYPE(Hertz)
TRELLIS_YAML_TYPE(BytesPerSecond)
TRELLIS_YAML_TYPE(FlopsPerSecond)
TRELLIS_YAML_TYPE(std::vector<bool>)
TRELLIS_YAML_TYPE(std::vector<int>)
TRELLIS_YAML_TYPE(std::vector<std::int64_t>)
TRELLIS_YAML_TYPE(std::vector<double>)
TRELLIS_YAML_TYPE(std::vector<std::string>)
TRELLIS_YAML_TYPE(std::vector<Bytes>)
TRELLIS_YAML_TYPE(std::vector<Picoseconds>)
TRELLIS_YAML_TYPE(std::vector<Hertz>)
TRELLIS_YAML_TYPE(std::vector<BytesPerSecond>)
TRELLIS_YAML_TYPE(std::vector<FlopsPerSecond>)
#undef TRELLIS_YAML_TYPE

bool YamlMap::has(const std::string& key) const {
  return checked(impl_).node->find(key) != nullptr;
}

bool YamlMap::is_map(const std::string& key) const {
  const NodePtr node = checked(impl_).node->find(key);
  return node != nullptr && node->kind == Node::Kind::kMap;
}

bool YamlMap::is_unresolved(const std::string& key) const {
  const Node& node = *checked(impl_).node;
  const NodePtr value = node.find(key);
  return value == nullptr ? node.unresolved : value->unresolved;
}

YamlMap YamlMap::map(const std::string& key) const {
  YamlNodeImpl& impl = checked(impl_);
  impl.node->known.insert(key);
  NodePtr node = impl.node->find(key);
  const bool usable = node != nullptr && node->kind == Node::Kind::kMap;
  if (!usable) {
    if (node != nullptr && node->kind != Node::Kind::kNull)
      problem(key, "expected a mapping, got " + describe(*node));
    auto empty = std::make_shared<Node>();
    empty->kind = Node::Kind::kMap;
    empty->origin = node != nullptr ? node->origin : impl.node->origin;
    empty->unresolved = is_unresolved(key);
    node = empty;
  }
  YamlMap out;
  out.impl_ = std::make_shared<YamlNodeImpl>(impl.document, node, yaml::join_path(impl.path, key));
  return out;
}

std::vector<YamlMap> YamlMap::list_of_maps(const std::string& key) const {
  YamlNodeImpl& impl = checked(impl_);
  impl.node->known.insert(key);
  const NodePtr node = impl.node->find(key);
  std::vector<YamlMap> out;
  if (node == nullptr || node->kind == Node::Kind::kNull) return out;
  if (node->kind != Node::Kind::kList) {
    problem(key, "expected a list of mappings, got " + describe(*node));
    return out;
  }
  for (std::size_t i = 0; i < node->items.size(); ++i) {
    const NodePtr item = node->items[i];
    const std::string path = yaml::join_path(yaml::join_path(impl.path, key), std::to_string(i));
    if (item->kind != Node::Kind::kMap) {
      add_problem(*impl.document, *item, path, "expected a mapping, got " + describe(*item));
      continue;
    }
    out.emplace_back().impl_ = std::make_shared<YamlNodeImpl>(impl.document, item, path);
  }
  return out;
}

std::vector<std::string> YamlMap::keys() const { return checked(impl_).node->keys(); }

std::string YamlMap::where(const std::string& key) const {
  const YamlNodeImpl& impl = checked(impl_);
  const NodePtr node = impl.node->find(key);
  return (node != nullptr ? node->origin : impl.node->origin) + ":" +
         yaml::join_path(impl.path, key);
}

std::string YamlMap::raw(const std::string& key) const {
  const NodePtr node = checked(impl_).node->find(key);
  return node != nullptr && node->kind == Node::Kind::kScalar ? node->text : "";
}

namespace {

void emit(YAML::Emitter& out, const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull: out << YAML::Null; break;
    case Node::Kind::kScalar:
      if (node.quoted) out << YAML::DoubleQuoted;
      out << node.text;
      break;
    case Node::Kind::kMap:
      out << YAML::BeginMap;
      for (const auto& [key, value] : node.entries) {
        out << YAML::Key << key << YAML::Value;
        emit(out, *value);
      }
      out << YAML::EndMap;
      break;
    case Node::Kind::kList:
      out << YAML::BeginSeq;
      for (const NodePtr& item : node.items) emit(out, *item);
      out << YAML::EndSeq;
      break;
  }
}

}  // namespace

std::string YamlMap::flow_text(const std::string& key) const {
  const NodePtr node = checked(impl_).node->find(key);
  if (node == nullptr) return "null";
  YAML::Emitter out;
  out.SetMapFormat(YAML::Flow);
  out.SetSeqFormat(YAML::Flow);
  emit(out, *node);
  return out.c_str();
}

void YamlMap::problem(const std::string& key, const std::string& text) const {
  yaml::add_problem(*checked(impl_).document, where(key), text);
}

void YamlMap::allow_any(const std::string& key) const { checked(impl_).node->known.insert(key); }

void YamlMap::reject_unknown() const {
  const YamlNodeImpl& impl = checked(impl_);
  const std::vector<std::string> known(impl.node->known.begin(), impl.node->known.end());
  for (const auto& entry : impl.node->entries) {
    const std::string& key = entry.first;
    if (impl.node->known.contains(key)) continue;
    const std::string nearest = nearest_name(key, known);
    problem(key, "unknown key" +
                     (nearest.empty() ? std::string() : ", did you mean '" + nearest + "'?"));
  }
}

namespace {

/// Configurations have some kilobytes; the reader takes a second for such a file.
constexpr std::int64_t kMostYamlBytes = 1 << 20;

std::string read_text(const std::filesystem::path& file) {
  return read_input_file(file, kMostYamlBytes);
}

void apply(yaml::Document& document, const std::vector<std::string>& overrides) {
  for (const std::string& override_text : overrides) yaml::apply_override(document, override_text);
}

}  // namespace

YamlDocument YamlDocument::load(const std::filesystem::path& file,
                                const std::vector<std::string>& overrides) {
  return parse(read_text(file), file.string(), overrides);
}

YamlDocument YamlDocument::of_tree(const std::function<void(yaml::Document&)>& fill) {
  YamlDocument out;
  out.state_ = std::make_shared<State>();
  fill(*out.state_->document);
  yaml::interpolate(*out.state_->document);
  yaml::take_out_keys(*out.state_->document);
  return out;
}

YamlDocument YamlDocument::parse(const std::string& text, const std::string& name,
                                 const std::vector<std::string>& overrides) {
  return of_tree([&](yaml::Document& document) {
    document.name = name;
    yaml::parse_into(document, text);
    apply(document, overrides);
  });
}

YamlSource YamlSource::load(const std::filesystem::path& file) {
  auto parsed = std::make_shared<YamlDocument>();
  parsed->state_ = std::make_shared<YamlDocument::State>();
  parsed->state_->document->name = file.string();
  yaml::parse_into(*parsed->state_->document, read_text(file));
  YamlSource source;
  source.parsed_ = std::move(parsed);
  return source;
}

YamlDocument YamlSource::with(const std::vector<std::string>& overrides) const {
  const yaml::Document& parsed = *parsed_->state_->document;
  return YamlDocument::of_tree([&](yaml::Document& document) {
    document = parsed;
    yaml::CopyBudget whole;  // the file's own copies are counted in the document's
    document.root = yaml::deep_copy(*parsed.root, whole);
    apply(document, overrides);
  });
}

YamlMap YamlDocument::root() const {
  YamlMap out;
  out.impl_ = std::make_shared<YamlNodeImpl>(state_->document, state_->document->root, "");
  return out;
}

Problems& YamlDocument::problems() const { return state_->document->problems; }

const std::vector<std::string>& YamlDocument::addresses_with_keys() const {
  return state_->document->addresses_with_keys;
}

std::string YamlDocument::resolved_text() const {
  YAML::Emitter out;
  emit(out, *state_->document->root);
  return std::string(out.c_str()) + "\n";
}

}  // namespace trellis
