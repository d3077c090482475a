#include "trainer/files/checkpoint/containers/value.h"

#include <utility>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/checkpoint/containers/value_parts.h"

namespace trellis::checkpoint {
namespace {

[[noreturn]] void wrong_kind(const char* expected, const Value& got) {
  throw ConfigError(std::string("expected ") + expected + ", got " + Value::name(got.kind()) + " " +
                    got.text(80));
}

/// The content for a change: this copy's own.
template <typename T>
T& own(std::shared_ptr<T>& content) {
  if (content.use_count() > 1) content = std::make_shared<T>(*content);
  return *content;
}

}  // namespace

Value::Value(std::string value) : content_(std::make_shared<const std::string>(std::move(value))) {}

Value Value::bytes(std::string value) {
  Value result;
  result.content_ = Bytes{std::make_shared<const std::string>(std::move(value))};
  return result;
}

Value Value::list(List items, std::string class_name) {
  Value result;
  result.content_ = std::make_shared<ValueSequence>(ValueSequence{
      .is_tuple = false, .class_name = std::move(class_name), .items = std::move(items)});
  return result;
}

Value Value::tuple(List items, std::string class_name) {
  Value result;
  result.content_ = std::make_shared<ValueSequence>(ValueSequence{
      .is_tuple = true, .class_name = std::move(class_name), .items = std::move(items)});
  return result;
}

Value Value::size(const std::vector<std::int64_t>& sizes) {
  return tuple(List(sizes.begin(), sizes.end()), "torch.Size");
}

Value Value::dict(std::vector<std::pair<Value, Value>> items, std::string class_name) {
  auto content = std::make_shared<ValueDict>();
  content->class_name = std::move(class_name);
  for (auto& [key, value] : items) content->set(key, std::move(value));
  Value result;
  result.content_ = std::move(content);
  return result;
}

Value Value::ordered_dict(std::vector<std::pair<Value, Value>> items) {
  return dict(std::move(items), "collections.OrderedDict");
}

Value Value::tensor(std::int64_t index) {
  Value result;
  result.content_ = TensorIndex{index};
  return result;
}

Value Value::object(ValueObject object) {
  Value result;
  result.content_ = std::make_shared<ValueObject>(std::move(object));
  return result;
}

Value Value::named(std::string class_name) {
  return object({.form = ValueObject::Form::kName, .class_name = std::move(class_name)});
}

Value Value::dtype(DType dtype) {
  return named(std::string("torch.") + trellis::checkpoint::name(dtype));
}

Value Value::instance(std::string class_name, Value attributes) {
  return object({.form = ValueObject::Form::kInstance,
                 .class_name = std::move(class_name),
                 .state = std::move(attributes)});
}

Value::Kind Value::kind() const {
  if (const auto* sequence = std::get_if<std::shared_ptr<ValueSequence>>(&content_))
    return (*sequence)->is_tuple ? Kind::kTuple : Kind::kList;
  constexpr Kind kByIndex[] = {Kind::kNone,   Kind::kBool,  Kind::kInt,  Kind::kFloat,
                               Kind::kString, Kind::kBytes, Kind::kList, Kind::kDict,
                               Kind::kObject, Kind::kTensor};
  return kByIndex[content_.index()];
}

bool Value::as_bool() const {
  if (const bool* value = std::get_if<bool>(&content_)) return *value;
  wrong_kind("bool", *this);
}
std::int64_t Value::as_int() const {
  if (const bool* value = std::get_if<bool>(&content_)) return *value ? 1 : 0;
  if (const std::int64_t* value = std::get_if<std::int64_t>(&content_)) return *value;
  wrong_kind("int", *this);
}
double Value::as_double() const {
  if (const double* value = std::get_if<double>(&content_)) return *value;
  if (const std::int64_t* value = std::get_if<std::int64_t>(&content_))
    return static_cast<double>(*value);
  wrong_kind("float", *this);
}
const std::string& Value::as_string() const {
  if (const String* value = std::get_if<String>(&content_)) return **value;
  wrong_kind("str", *this);
}
const std::string& Value::as_bytes() const {
  if (const Bytes* value = std::get_if<Bytes>(&content_)) return *value->content;
  wrong_kind("bytes", *this);
}
const Value::List& Value::items() const {
  if (const auto* value = std::get_if<std::shared_ptr<ValueSequence>>(&content_))
    return (*value)->items;
  wrong_kind("list or tuple", *this);
}
std::vector<std::int64_t> Value::as_ints() const {
  std::vector<std::int64_t> ints;
  for (const Value& item : items()) ints.push_back(item.as_int());
  return ints;
}
const ValueDict& Value::as_dict() const {
  if (const auto* value = std::get_if<std::shared_ptr<ValueDict>>(&content_)) return **value;
  wrong_kind("dict", *this);
}
std::int64_t Value::as_tensor() const {
  if (const TensorIndex* value = std::get_if<TensorIndex>(&content_)) return value->index;
  wrong_kind("tensor", *this);
}
const ValueObject& Value::as_object() const {
  if (const auto* value = std::get_if<std::shared_ptr<ValueObject>>(&content_)) return **value;
  wrong_kind("object", *this);
}
DType Value::as_dtype() const {
  if (is(Kind::kObject) && as_object().form == ValueObject::Form::kName) {
    if (const auto dtype = dtype_named(as_object().class_name)) return *dtype;
  }
  wrong_kind("torch.dtype", *this);
}

const std::string& Value::class_name() const {
  static const std::string none;
  if (const auto* value = std::get_if<std::shared_ptr<ValueSequence>>(&content_))
    return (*value)->class_name;
  if (is_dict()) return as_dict().class_name;
  return is(Kind::kObject) ? as_object().class_name : none;
}

const Value* Value::find(const Value& key) const {
  if (is_dict()) return as_dict().find(key);
  if (!is(Kind::kObject)) return nullptr;
  const Value& state = as_object().state;
  if (state.is_dict()) return state.find(key);
  if (!state.is(Kind::kTuple)) return nullptr;
  for (const Value& part : state.items()) {  // (attributes, slots)
    if (const Value* found = part.is_dict() ? part.find(key) : nullptr) return found;
  }
  return nullptr;
}

const Value& Value::at(const Value& key) const {
  if (const Value* value = find(key)) return *value;
  throw ConfigError("expected key " + key.text(80) + ", got " + text(200));
}

void Value::set(const Value& key, Value value) {
  if (!is_dict()) wrong_kind("dict", *this);
  own(std::get<std::shared_ptr<ValueDict>>(content_)).set(key, std::move(value));
}

void Value::erase(const Value& key) {
  if (!is_dict()) wrong_kind("dict", *this);
  own(std::get<std::shared_ptr<ValueDict>>(content_)).erase(key);
}

void Value::append(Value value) {
  if (!is(Kind::kList)) wrong_kind("list", *this);
  own(std::get<std::shared_ptr<ValueSequence>>(content_)).items.push_back(std::move(value));
}

bool operator==(const Value& a, const Value& b) {
  if (a.content_.index() != b.content_.index()) return false;
  return std::visit(
      [&b](const auto& x) {
        using T = std::decay_t<decltype(x)>;
        const auto& y = std::get<T>(b.content_);
        if constexpr (std::is_same_v<T, Value::Bytes>)
          return *x.content == *y.content;
        else if constexpr (requires { x.use_count(); })
          return x == y || *x == *y;
        else
          return x == y;
      },
      a.content_);
}

const char* Value::name(Kind kind) {
  constexpr const char* kNames[] = {"None", "bool",  "int",  "float",  "str",   "bytes",
                                    "list", "tuple", "dict", "tensor", "object"};
  return kNames[static_cast<std::size_t>(kind)];
}

const Value* ValueDict::find(const Value& key) const {
  const auto place = places_.find(key_text(key));
  return place == places_.end() ? nullptr : &items_[place->second].second;
}

void ValueDict::set(const Value& key, Value value) {
  const auto [place, added] = places_.try_emplace(key_text(key), items_.size());
  if (added)
    items_.emplace_back(key, std::move(value));
  else
    items_[place->second].second = std::move(value);
}

void ValueDict::erase(const Value& key) {
  const auto place = places_.find(key_text(key));
  if (place == places_.end()) return;
  const std::size_t index = place->second;
  items_.erase(items_.begin() + static_cast<std::ptrdiff_t>(index));
  places_.erase(place);
  for (auto& [text, later] : places_) {
    if (later > index) --later;
  }
}

bool operator==(const ValueDict& a, const ValueDict& b) {
  return a.class_name == b.class_name && a.attributes == b.attributes && a.items_ == b.items_;
}

}  // namespace trellis::checkpoint
