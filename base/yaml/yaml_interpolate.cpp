#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include "base/nearest.h"
#include "base/yaml/yaml_tree.h"

namespace trellis::yaml {
namespace {

constexpr std::size_t kMaxTextBytes =
    1 << 20;  ///< one interpolated text: nested doubling would otherwise fill the memory
constexpr int kMaxDepth = 200;  ///< of references that lead to references

std::string trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t") - first + 1));
}

/// Index after the brace that closes the "${" at `start`, or npos.
std::size_t end_of_reference(std::string_view text, std::size_t start) {
  int depth = 0;
  for (std::size_t i = start; i < text.size(); ++i) {
    if (text.substr(i, 2) == "${") ++depth;
    if (text[i] == '}' && --depth == 0) return i + 1;
  }
  return std::string_view::npos;
}

std::string number_text(double value) {
  if (value == std::floor(value) && std::abs(value) < 0x1p53)
    return std::to_string(static_cast<std::int64_t>(value));
  char buffer[32];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
}

std::optional<double> as_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

NodePtr scalar(const Node& like, std::string text) {
  auto node = std::make_shared<Node>(like);
  node->text = std::move(text);
  node->resolution = Node::Resolution::kDone;
  return node;
}

/// Thrown for a problem of one interpolation; "" if the problem was reported already. Caught where
/// the place of the interpolation is known.
struct BadReference {
  std::string text;
};

class Interpolator {
 public:
  explicit Interpolator(Document& document) : document_(document) {}

  void run() { resolve_inside(document_.root, ""); }

 private:
  void resolve_inside(NodePtr& node, const std::string& path) {
    for (auto& [key, value] : node->entries) resolve_inside(value, join_path(path, key));
    for (std::size_t i = 0; i < node->items.size(); ++i)
      resolve_inside(node->items[i], join_path(path, std::to_string(i)));
    if (node->kind == Node::Kind::kScalar) resolve_scalar(node, path);
  }

  /// Replaces `node`, a place in the tree, by its resolved form.
  void resolve_scalar(NodePtr& node, const std::string& path) {
    if (node->resolution == Node::Resolution::kDone) return;
    if (node->text.find("${") == std::string::npos) {
      node->resolution = Node::Resolution::kDone;
      return;
    }
    if (node->resolution == Node::Resolution::kRunning)
      throw BadReference{"the reference leads back to itself at " + path};
    node->resolution = Node::Resolution::kRunning;
    const NodePtr original = node;  // stays marked as running until its replacement is there
    try {
      const Depth guard(depth_);
      NodePtr resolved = resolve_text(*original, path);
      resolved->origin = original->origin;
      resolved->resolution = Node::Resolution::kDone;
      node = resolved;
    } catch (const BadReference& bad) {
      node = scalar(*original, "");
      node->kind = Node::Kind::kNull;
      node->unresolved = true;
      if (!bad.text.empty())
        add_problem(document_, original->origin + ":" + path,
                    "cannot resolve '" + original->text + "': " + bad.text);
    }
  }

  /// A text that is one reference takes the target's kind; otherwise the targets' texts are pasted.
  NodePtr resolve_text(const Node& node, const std::string& path) {
    const std::string& text = node.text;
    if (text.starts_with("${") && end_of_reference(text, 0) == text.size())
      return evaluate(text.substr(2, text.size() - 3), node, path);
    std::string out;
    std::size_t position = 0;
    for (std::size_t start = text.find("${"); start != std::string::npos;
         start = text.find("${", position)) {
      const std::size_t end = end_of_reference(text, start);
      if (end == std::string::npos) throw BadReference{"'${' without '}'"};
      out.append(text, position, start - position);
      out += scalar_text(*evaluate(text.substr(start + 2, end - start - 3), node, path));
      if (out.size() > kMaxTextBytes) throw BadReference{"the text grows beyond 1 MiB"};
      position = end;
    }
    return scalar(node, out + text.substr(position));
  }

  static std::string scalar_text(const Node& node) {
    if (node.unresolved) throw BadReference{};
    if (node.kind != Node::Kind::kScalar)
      throw BadReference{"a mapping, a list or null cannot be inside a text"};
    return node.text;
  }

  /// `expression` is what is between "${" and "}".
  NodePtr evaluate(const std::string& expression, const Node& node, const std::string& path) {
    const std::size_t colon = expression.find(':');
    if (colon == std::string::npos) return lookup(trimmed(expression), path);
    const std::string resolver = trimmed(expression.substr(0, colon));
    if (resolver != "multiply" && resolver != "sum")
      throw BadReference{"unknown function '" + resolver +
                         "', expected ${multiply:a, b} or ${sum:a, b}"};
    return calculate(resolver, expression.substr(colon + 1), node, path);
  }

  NodePtr calculate(const std::string& function, const std::string& arguments, const Node& node,
                    const std::string& path) {
    const bool adds = function == "sum";
    double value = adds ? 0 : 1;
    int count = 0;
    for (const std::string& argument : split_arguments(arguments)) {
      const double number = operand(function, argument, node, path);
      value = adds ? value + number : value * number;
      ++count;
    }
    if (count < 2) throw BadReference{function + " needs two arguments: ${" + function + ":a, b}"};
    NodePtr result = scalar(node, number_text(value));
    result->quoted = false;
    return result;
  }

  /// Arguments are numbers, nested references or bare paths.
  double operand(const std::string& function, const std::string& argument, const Node& node,
                 const std::string& path) {
    if (const auto number = as_number(argument)) return *number;
    NodePtr value;
    if (argument.find("${") != std::string::npos) {
      value = resolve_text(*scalar(node, argument), path);
    } else {
      value = lookup(argument, path);
    }
    if (value->unresolved) throw BadReference{};
    const auto number = value->kind == Node::Kind::kScalar ? as_number(value->text) : std::nullopt;
    if (!number) throw BadReference{function + " needs numbers, '" + argument + "' is none"};
    return *number;
  }

  static std::vector<std::string> split_arguments(const std::string& arguments) {
    std::vector<std::string> out;
    int depth = 0;
    std::string current;
    for (const char c : arguments) {
      if (c == '{') ++depth;
      if (c == '}') --depth;
      if (c == ',' && depth == 0) {
        out.push_back(trimmed(current));
        current.clear();
      } else {
        current += c;
      }
    }
    out.push_back(trimmed(current));
    return out;
  }

  NodePtr lookup(const std::string& reference, const std::string& from) {
    const std::string path = absolute(reference, from);
    NodePtr* place = &document_.root;
    std::string walked;
    for (const std::string& part : split_path(path)) {
      if ((*place)->kind == Node::Kind::kScalar) resolve_scalar(*place, walked);
      if ((*place)->unresolved) throw BadReference{};
      NodePtr* next = step(**place, part);
      if (next == nullptr)
        throw BadReference{"no key '" + path + "'" + hint(**place, walked, part)};
      place = next;
      walked = join_path(walked, part);
    }
    resolve_inside(*place, walked);
    return deep_copy(**place, document_.budget);
  }

  static NodePtr* step(Node& node, const std::string& part) {
    if (NodePtr* const found = node.place(part)) return found;
    std::size_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_index = error == std::errc() && end == part.data() + part.size();
    return is_index && index < node.items.size() ? &node.items[index] : nullptr;
  }

  static std::string hint(const Node& node, const std::string& walked, const std::string& part) {
    const std::string nearest = nearest_name(part, node.keys());
    return nearest.empty() ? "" : ", did you mean '" + join_path(walked, nearest) + "'?";
  }

  /// ".sibling" is relative to the mapping that holds the reference, each further dot goes one
  /// mapping up.
  static std::string absolute(const std::string& reference, const std::string& from) {
    if (reference.empty()) throw BadReference{"'${}' names nothing"};
    if (reference[0] != '.') return reference;
    std::vector<std::string> parts = split_path(from);
    const std::size_t found = reference.find_first_not_of('.');
    const std::size_t dots = found == std::string::npos ? reference.size() : found;
    if (dots > parts.size())
      throw BadReference{"'" + reference + "' goes above the top of the file"};
    parts.resize(parts.size() - dots);
    std::string path;
    for (const std::string& part : parts) path = join_path(path, part);
    return join_path(path, reference.substr(dots));
  }

  struct Depth {
    explicit Depth(int& depth) : value(depth) {
      if (++value > kMaxDepth) {
        --value;
        throw BadReference{"more than 200 references in a row"};
      }
    }
    ~Depth() { --value; }
    int& value;
  };

  Document& document_;
  int depth_ = 0;
};

}  // namespace

void interpolate(Document& document) { Interpolator(document).run(); }

}  // namespace trellis::yaml
