#include "trainer/files/checkpoint/containers/pickle_machine.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/checkpoint/containers/pickle_classes.h"

namespace trellis::checkpoint {
namespace {

constexpr int kDeepest = 200;
/// Values that a pickle may unfold to: `kFree` and so many per byte. Sharing in real files hardly
/// unfolds at all.
constexpr std::uint64_t kFreeValues = 100'000, kValuesPerByte = 100;
constexpr std::uint64_t kFreeBytes = std::uint64_t{4} << 20, kCopiedPerByte = 100;
constexpr std::size_t kLongestName = 1000;

}  // namespace

PickleMachine::PickleMachine(std::span<const std::byte> bytes, const PickleOptions& options)
    : bytes_(bytes), options_(options) {}

/// Nodes that are not in the result may form cycles or long chains. Emptied one by one, while all
/// are held here, they end without recursion.
PickleMachine::~PickleMachine() {
  stack_.clear();
  memo_.clear();
  for (const Value& node : nodes_) {
    if (!measured_.contains(node_of(node))) clear(node);
  }
}

void PickleMachine::fail(const std::string& what) const {
  char opcode[8];
  std::snprintf(opcode, sizeof opcode, "0x%02x", opcode_);
  throw ConfigError(options_.where + ": pickle, offset " + std::to_string(opcode_at_) +
                    ", opcode " + opcode + ": " + what);
}

std::string_view PickleMachine::take(std::uint64_t count) {
  if (count > bytes_.size() - at_) {
    fail("needs " + std::to_string(count) + " bytes, " + std::to_string(bytes_.size() - at_) +
         " are left: cut off or damaged");
  }
  const std::string_view taken(reinterpret_cast<const char*>(bytes_.data()) + at_, count);
  at_ += count;
  return taken;
}

std::uint64_t PickleMachine::little(int bytes) {
  std::uint64_t value = 0;
  const std::string_view text = take(static_cast<std::uint64_t>(bytes));
  for (int i = bytes; i-- > 0;)
    value = value << 8 | static_cast<unsigned char>(text[static_cast<std::size_t>(i)]);
  return value;
}

std::string_view PickleMachine::line() {
  const std::string_view rest(reinterpret_cast<const char*>(bytes_.data()) + at_,
                              std::min(bytes_.size() - at_, kLongestName + 1));
  const std::size_t end = rest.find('\n');
  if (end == std::string_view::npos) fail("a name without an end, or longer than 1000 bytes");
  at_ += end + 1;
  return rest.substr(0, end);
}

std::int64_t PickleMachine::long_int(std::uint64_t bytes) {
  const std::string_view text = take(bytes);
  if (bytes == 0) return 0;
  const bool negative = (static_cast<unsigned char>(text.back()) & 0x80) != 0;
  std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
  const auto spare = static_cast<char>(negative ? 0xFF : 0);
  for (std::size_t i = bytes; i-- > 0;) {
    if (i >= 8) {
      if (text[i] != spare) fail("an int of more than 64 bits, which is not supported");
    } else {
      value = value << 8 | static_cast<unsigned char>(text[i]);
    }
  }
  if ((static_cast<std::int64_t>(value) < 0) != negative)
    fail("an int of more than 63 bits and sign, which is not supported");
  return static_cast<std::int64_t>(value);
}

void PickleMachine::spend(std::size_t bytes) {
  spent_ += bytes;
  if (spent_ > kFreeBytes + kCopiedPerByte * bytes_.size())
    fail("copies more than a file of its size holds");
}

void PickleMachine::push(Value value) { stack_.push_back(std::move(value)); }

void PickleMachine::push_node(Value value) {
  nodes_.push_back(value);
  push(std::move(value));
}

Value PickleMachine::pop() {
  Value value = std::move(top());
  stack_.pop_back();
  return value;
}

Value& PickleMachine::top() {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("the stack is empty");
  return stack_.back();
}

Value::List PickleMachine::pop_to_mark() {
  if (marks_.empty()) fail("no mark on the stack");
  const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  Value::List items(std::make_move_iterator(begin), std::make_move_iterator(stack_.end()));
  stack_.erase(begin, stack_.end());
  marks_.pop_back();
  return items;
}

void PickleMachine::remember(std::uint64_t index) {
  // Every entry costs a byte of the file: larger indices are not of a pickler.
  if (index > bytes_.size()) fail("memo index " + std::to_string(index));
  if (index >= memo_.size()) {
    memo_.resize(index + 1);
    remembered_.resize(index + 1);
  }
  if (!remembered_[index]) ++memo_count_;
  memo_[index] = top();
  remembered_[index] = true;
}

void PickleMachine::recall(std::uint64_t index) {
  if (index >= memo_.size() || !remembered_[index])
    fail("memo index " + std::to_string(index) + " was never stored");
  push(memo_[index]);
}

const void* PickleMachine::node_of(const Value& value) {
  if (const auto* node = std::get_if<std::shared_ptr<ValueSequence>>(&value.content_))
    return node->get();
  if (const auto* node = std::get_if<std::shared_ptr<ValueDict>>(&value.content_))
    return node->get();
  if (const auto* node = std::get_if<std::shared_ptr<ValueObject>>(&value.content_))
    return node->get();
  return nullptr;
}

void PickleMachine::clear(const Value& value) {
  if (const auto* node = std::get_if<std::shared_ptr<ValueSequence>>(&value.content_))
    **node = {};
  else if (const auto* dict = std::get_if<std::shared_ptr<ValueDict>>(&value.content_))
    **dict = {};
  else if (const auto* object = std::get_if<std::shared_ptr<ValueObject>>(&value.content_))
    **object = {};
}

PickleMachine::Extent PickleMachine::measure(const Value& value, int above) {
  const void* node = node_of(value);
  if (node == nullptr) return {.depth = 1, .values = 1};
  if (above > kDeepest) fail("nested deeper than " + std::to_string(kDeepest));
  const auto [known, fresh] = measured_.try_emplace(node);
  if (!fresh) {
    if (known->second.depth == 0) fail("a value that contains itself, which is not supported");
    if (above + known->second.depth > kDeepest)
      fail("nested deeper than " + std::to_string(kDeepest));
    return known->second;
  }
  Extent extent{.depth = 1, .values = 1};
  const auto add = [&](const Value& part) {
    const Extent inner = measure(part, above + 1);
    extent.depth = std::max(extent.depth, inner.depth + 1);
    extent.values = std::min(extent.values + inner.values, std::uint64_t{1} << 62);
  };
  if (value.is_dict()) {
    for (const auto& [key, item] : value.as_dict()) add(key), add(item);
    add(value.as_dict().attributes);
  } else if (value.is(Value::Kind::kObject)) {
    for (const Value& argument : value.as_object().arguments) add(argument);
    add(value.as_object().state);
  } else {
    for (const Value& item : value.items()) add(item);
  }
  measured_[node] = extent;
  return extent;
}

Value PickleMachine::run() {
  constexpr unsigned char kStop = '.';
  for (;;) {
    opcode_at_ = at_;
    opcode_ = static_cast<unsigned char>(take(1)[0]);
    if (opcode_ == kStop) break;
    step(opcode_);
  }
  if (!marks_.empty()) fail("ends within a list");
  Value result = pop();
  try {
    const Extent extent = measure(result, 1);
    if (extent.values > kFreeValues + kValuesPerByte * bytes_.size())
      fail("shared parts that unfold to " + std::to_string(extent.values) + " values");
  } catch (...) {
    measured_.clear();
    throw;
  }
  return result;
}

Value read_pickle(std::span<const std::byte> bytes, const PickleOptions& options) {
  PickleMachine machine(bytes, options);
  return machine.run();
}

}  // namespace trellis::checkpoint
