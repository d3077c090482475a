#include <cstdio>
#include <string>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/checkpoint/containers/value.h"
#include "trainer/files/checkpoint/containers/value_parts.h"

namespace trellis::checkpoint {
namespace {

constexpr std::size_t kMostKeyText = std::size_t{1} << 20;
constexpr int kDeepestKey = 100, kDeepestText = 250;

class KeyText {
 public:
  std::string result;

  void add(const Value& key, int depth = 0) {
    if (depth > kDeepestKey || result.size() > kMostKeyText)
      throw ConfigError("a key of a dict that is nested too deep or too long");
    switch (key.kind()) {
      case Value::Kind::kNone: result += 'n'; break;
      case Value::Kind::kBool:  // True equals 1
      case Value::Kind::kInt: result += 'i' + std::to_string(key.as_int()) + ';'; break;
      case Value::Kind::kFloat: add_float(key.as_double()); break;
      case Value::Kind::kString: add_text('s', key.as_string()); break;
      case Value::Kind::kBytes: add_text('b', key.as_bytes()); break;
      case Value::Kind::kTuple: add_all('(', key.items(), depth); break;
      case Value::Kind::kObject: add_object(key.as_object(), depth); break;
      case Value::Kind::kList:
      case Value::Kind::kDict:
      case Value::Kind::kTensor:
        throw ConfigError(std::string("a ") + Value::name(key.kind()) + " as the key of a dict");
    }
  }

 private:
  void add_float(double value) {
    if (value == static_cast<double>(static_cast<std::int64_t>(
                     value > -1e15 && value < 1e15 ? value : 0.5))) {  // 1.0 equals 1
      result += 'i' + std::to_string(static_cast<std::int64_t>(value)) + ';';
      return;
    }
    char text[40];
    std::snprintf(text, sizeof text, "f%a;", value);
    result += text;
  }
  void add_text(char mark, const std::string& text) {
    result += mark + std::to_string(text.size()) + ':' + text;
  }
  void add_all(char mark, const Value::List& items, int depth) {
    result += mark;
    for (const Value& item : items) add(item, depth + 1);
    result += ')';
  }
  void add_object(const ValueObject& object, int depth) {
    add_text("oci"[static_cast<std::size_t>(object.form)], object.class_name);
    add_all('(', object.arguments, depth);
    if (object.state.is_dict()) {
      for (const auto& [key, value] : object.state.as_dict()) {
        add(key, depth + 1);
        add(value, depth + 1);
      }
      result += ')';
    } else {
      add(object.state, depth + 1);
    }
  }
};

class PythonText {
 public:
  explicit PythonText(std::size_t most) : most_(most) {}
  std::string result;

  void add(const Value& value, int depth = 0) {
    if (result.size() > most_) return;
    if (depth > kDeepestText) return put("…");
    switch (value.kind()) {
      case Value::Kind::kNone: return put("None");
      case Value::Kind::kBool: return put(value.as_bool() ? "True" : "False");
      case Value::Kind::kInt: return put(std::to_string(value.as_int()));
      case Value::Kind::kFloat: return add_float(value.as_double());
      case Value::Kind::kString: return add_quoted(value.as_string());
      case Value::Kind::kBytes:
        return put("<" + std::to_string(value.as_bytes().size()) + " bytes>");
      case Value::Kind::kTensor: return put("<tensor " + std::to_string(value.as_tensor()) + ">");
      case Value::Kind::kList: return add_items(value, value.items(), "[", "]", depth);
      case Value::Kind::kTuple: return add_items(value, value.items(), "(", ")", depth);
      case Value::Kind::kDict: return add_dict(value.as_dict(), depth);
      case Value::Kind::kObject: return add_object(value.as_object(), depth);
    }
  }

 private:
  void put(const std::string& text) { result += text; }
  void add_float(double value) {
    char text[40];
    std::snprintf(text, sizeof text, "%.17g", value);
    put(text);
  }
  void add_quoted(const std::string& text) {
    put("'" + terminal_line(text.substr(0, most_)) + "'");
  }
  void add_items(const Value& value, const Value::List& items, const char* begin, const char* end,
                 int depth) {
    put(terminal_line(value.class_name()) + begin);
    for (std::size_t i = 0; i < items.size() && result.size() <= most_; ++i) {
      if (i > 0) put(", ");
      add(items[i], depth + 1);
    }
    put(end);
  }
  void add_dict(const ValueDict& dict, int depth) {
    put(terminal_line(dict.class_name) + "{");
    bool first = true;
    for (const auto& [key, item] : dict) {
      if (result.size() > most_) break;
      if (!std::exchange(first, false)) put(", ");
      add(key, depth + 1);
      put(": ");
      add(item, depth + 1);
    }
    put("}");
  }
  void add_object(const ValueObject& object, int depth) {
    put(terminal_line(object.class_name));
    if (object.form == ValueObject::Form::kName) return;
    put("(");
    for (const Value& argument : object.arguments) add(argument, depth + 1), put(", ");
    add(object.state, depth + 1);
    put(")");
  }

  std::size_t most_;
};

}  // namespace

std::string key_text(const Value& key) {
  KeyText text;
  text.add(key);
  return std::move(text.result);
}

std::string Value::text(std::size_t most) const {
  PythonText text(most);
  text.add(*this);
  if (text.result.size() <= most) return std::move(text.result);
  text.result.resize(most);
  text.result.resize(most - unfinished_utf8(text.result));
  return text.result + "…";
}

}  // namespace trellis::checkpoint
