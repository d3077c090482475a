#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "trainer/files/checkpoint/containers/pickle.h"
#include "trainer/files/checkpoint/containers/pickle_classes.h"

namespace trellis::checkpoint {
namespace {

/// Longer texts hardly repeat.
constexpr std::size_t kLongestShared = 256;
constexpr std::size_t kBatch = 1000;

class PickleWriter {
 public:
  explicit PickleWriter(const PickleWriteOptions& options) : options_(options) {}
  std::string result = std::string("\x80\x02", 2);

  void write(const Value& value) {
    switch (value.kind()) {
      case Value::Kind::kNone: return put('N');
      case Value::Kind::kBool: return put(value.as_bool() ? '\x88' : '\x89');
      case Value::Kind::kInt: return write_int(value.as_int());
      case Value::Kind::kFloat:
        put('G');
        return put_little(__builtin_bswap64(std::bit_cast<std::uint64_t>(value.as_double())), 8);
      case Value::Kind::kString: return write_text(value.as_string());
      case Value::Kind::kBytes: return write_bytes(value.as_bytes());
      case Value::Kind::kList: return write_list(value);
      case Value::Kind::kTuple: return write_tuple(value);
      case Value::Kind::kDict: return write_dict(value.as_dict());
      case Value::Kind::kTensor:
        TRELLIS_CHECK(options_.tensor != nullptr, "a pickle with tensors needs a file for them");
        return write(options_.tensor(value.as_tensor()));
      case Value::Kind::kObject: return write_object(value.as_object());
    }
  }

 private:
  void put(char c) { result += c; }
  void put_little(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) result += static_cast<char>(value >> (8 * i));
  }
  /// False: it is new, and written by the caller right before.
  bool recall(const std::string& key) {
    const auto known = memo_.find(key);
    if (known == memo_.end()) return false;
    put(known->second < 256 ? 'h' : 'j');
    put_little(known->second, known->second < 256 ? 1 : 4);
    return true;
  }
  void remember(std::string key) {
    const std::size_t index = memo_.size();
    memo_.emplace(std::move(key), index);
    put(index < 256 ? 'q' : 'r');
    put_little(index, index < 256 ? 1 : 4);
  }

  void write_int(std::int64_t value) {
    if (value >= 0 && value < 256)
      return put('K'), put_little(static_cast<std::uint64_t>(value), 1);
    if (value >= 0 && value < 65536)
      return put('M'), put_little(static_cast<std::uint64_t>(value), 2);
    if (value >= std::numeric_limits<std::int32_t>::min() &&
        value <= std::numeric_limits<std::int32_t>::max())
      return put('J'), put_little(static_cast<std::uint64_t>(value), 4);
    put('\x8a');
    put('\x08');
    put_little(static_cast<std::uint64_t>(value), 8);
  }
  void write_text(const std::string& text) {
    const bool shared = text.size() <= kLongestShared;
    const std::string key = shared ? "s" + text : "";
    if (shared && recall(key)) return;
    TRELLIS_CHECK(text.size() <= std::numeric_limits<std::uint32_t>::max(), "a text of 4 GiB");
    put('X');
    put_little(text.size(), 4);
    result += text;
    if (shared) remember(key);
  }
  void write_name(const std::string& class_name) {
    const std::string key = "c" + class_name;
    if (recall(key)) return;
    const PickledName name = protocol2_name(class_name);
    result += 'c' + name.module + '\n' + name.name + '\n';
    remember(key);
  }
  /// As Python writes bytes in protocol 2: every byte is a character of Latin-1.
  void write_bytes(const std::string& bytes) {
    std::string text;
    for (const char c : bytes) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte >= 0x80) text += static_cast<char>(0xC0 | byte >> 6);
      text += static_cast<char>(byte >= 0x80 ? 0x80 | (byte & 0x3F) : byte);
    }
    write_name("_codecs.encode");
    write_text(text);
    write_text("latin1");
    put('\x86');
    put('R');
  }
  void write_all(const Value::List& items) {
    for (const Value& item : items) write(item);
  }
  void write_plain_tuple(const Value::List& items) {
    constexpr char kSmall[] = {')', '\x85', '\x86', '\x87'};
    if (items.size() > 3) put('(');
    write_all(items);
    put(items.size() > 3 ? 't' : kSmall[items.size()]);
  }
  void write_tuple(const Value& value) {
    if (value.class_name().empty()) return write_plain_tuple(value.items());
    write_name(value.class_name());
    write_plain_tuple(value.items());
    put('\x85');
    put('R');
  }
  void write_list(const Value& value) {
    const bool classed = !value.class_name().empty();
    if (classed) write_name(value.class_name());
    put(']');
    const Value::List& items = value.items();
    for (std::size_t begin = 0; begin < items.size(); begin += kBatch) {
      put('(');
      for (std::size_t i = begin; i < std::min(items.size(), begin + kBatch); ++i) write(items[i]);
      put('e');
    }
    if (classed) put('\x85'), put('R');
  }
  void write_dict(const ValueDict& dict) {
    if (dict.class_name.empty()) {
      put('}');
    } else {
      write_name(dict.class_name);
      put(')');
      put('R');
    }
    std::size_t count = 0;
    for (const auto& [key, value] : dict) {
      if (count % kBatch == 0) put('(');
      write(key);
      write(value);
      if (++count % kBatch == 0) put('u');
    }
    if (count % kBatch != 0) put('u');
    if (!dict.attributes.is_none()) write(dict.attributes), put('b');
  }
  void write_object(const ValueObject& object) {
    if (object.form == ValueObject::Form::kCall && !options_.persistent_name.empty() &&
        object.class_name == options_.persistent_name) {
      write(object.arguments.at(0));
      return put('Q');
    }
    write_name(object.class_name);
    if (object.form == ValueObject::Form::kName) return;
    write_plain_tuple(object.arguments);
    put(object.form == ValueObject::Form::kCall ? 'R' : '\x81');
    if (!object.state.is_none()) write(object.state), put('b');
  }

  const PickleWriteOptions& options_;
  std::unordered_map<std::string, std::size_t> memo_;
};

}  // namespace

std::string write_pickle(const Value& value, const PickleWriteOptions& options) {
  PickleWriter writer(options);
  writer.write(value);
  return std::move(writer.result) + '.';
}

}  // namespace trellis::checkpoint
