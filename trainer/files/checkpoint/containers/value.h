#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "trainer/files/checkpoint/containers/dtype.h"

namespace trellis::checkpoint {

class ValueDict;
struct ValueSequence;
struct ValueObject;

/// Python data of a pickle, as data: nothing in it ever runs. Copies are cheap and share their
/// content; a change to one copy leaves the others as they were (copy on write). No cycles.
///
/// Lists, tuples and dicts may have a class ("": the built-in one): "torch.Size" is a tuple,
/// "builtins.set" a list, "collections.OrderedDict" a dict. A value with neither form is an object.
class Value {
 public:
  enum class Kind {
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,
    kBytes,
    kList,
    kTuple,
    kDict,
    kTensor,
    kObject
  };
  using List = std::vector<Value>;

  Value() = default;  ///< None
  Value(bool value) : content_(value) {}
  Value(std::int64_t value) : content_(value) {}
  Value(int value) : content_(std::int64_t{value}) {}
  Value(double value) : content_(value) {}
  Value(std::string value);
  Value(const char* value) : Value(std::string(value)) {}
  Value(std::string_view value) : Value(std::string(value)) {}
  static Value bytes(std::string value);
  static Value list(List items = {}, std::string class_name = "");
  static Value tuple(List items, std::string class_name = "");
  static Value size(const std::vector<std::int64_t>& sizes);  ///< torch.Size
  static Value dict(std::vector<std::pair<Value, Value>> items = {}, std::string class_name = "");
  static Value ordered_dict(std::vector<std::pair<Value, Value>> items = {});
  /// The tensor with this index in the file that holds the value.
  static Value tensor(std::int64_t index);
  static Value object(ValueObject object);
  /// A name of a module, such as "torch.float32"; see ValueObject::Form::kName.
  static Value named(std::string class_name);
  static Value dtype(DType dtype);  ///< named("torch.float32")
  /// A plain instance: attributes in a dict, as argparse.Namespace has them.
  static Value instance(std::string class_name, Value attributes);

  [[nodiscard]] Kind kind() const;
  [[nodiscard]] bool is(Kind kind) const { return this->kind() == kind; }
  [[nodiscard]] bool is_none() const { return is(Kind::kNone); }
  [[nodiscard]] bool is_string() const { return is(Kind::kString); }
  [[nodiscard]] bool is_dict() const { return is(Kind::kDict); }
  [[nodiscard]] bool is_tensor() const { return is(Kind::kTensor); }

  // Each throws ConfigError "expected int, got str" when the kind is another.
  [[nodiscard]] bool as_bool() const;
  [[nodiscard]] std::int64_t as_int() const;  ///< a bool is 0 or 1
  [[nodiscard]] double as_double() const;     ///< also of an int
  [[nodiscard]] const std::string& as_string() const;
  [[nodiscard]] const std::string& as_bytes() const;
  [[nodiscard]] const List& items() const;                  ///< of a list or tuple
  [[nodiscard]] std::vector<std::int64_t> as_ints() const;  ///< a list or tuple of ints
  [[nodiscard]] const ValueDict& as_dict() const;
  [[nodiscard]] std::int64_t as_tensor() const;
  [[nodiscard]] const ValueObject& as_object() const;
  [[nodiscard]] DType as_dtype() const;
  /// Class of a list, tuple, dict or object; "" for the built-in ones and for scalars.
  [[nodiscard]] const std::string& class_name() const;

  /// The value of a key of a dict, or an attribute of an instance; null when there is none, or this
  /// is neither.
  [[nodiscard]] const Value* find(const Value& key) const;
  /// As find; throws ConfigError that names the key when there is none.
  [[nodiscard]] const Value& at(const Value& key) const;
  /// Sets a key of a dict, at the end when it is new.
  void set(const Value& key, Value value);
  void erase(const Value& key);  ///< of a dict; no error when there is none
  void append(Value value);      ///< to a list

  /// Equal kinds, classes and contents; dicts: in the same order.
  friend bool operator==(const Value& a, const Value& b);
  /// Python's way to write it, for texts; cut after `most` characters.
  [[nodiscard]] std::string text(std::size_t most = 2000) const;
  [[nodiscard]] static const char* name(Kind kind);  ///< "int", "str", …

 private:
  friend class PickleMachine;
  struct TensorIndex {
    std::int64_t index;
    friend bool operator==(const TensorIndex&, const TensorIndex&) = default;
  };
  using String = std::shared_ptr<const std::string>;
  struct Bytes {
    String content;
  };
  std::variant<std::monostate, bool, std::int64_t, double, String, Bytes,
               std::shared_ptr<ValueSequence>, std::shared_ptr<ValueDict>,
               std::shared_ptr<ValueObject>, TensorIndex>
      content_;
};

}  // namespace trellis::checkpoint

#include "trainer/files/checkpoint/containers/value_parts.h"  // pair: what a value holds are values
