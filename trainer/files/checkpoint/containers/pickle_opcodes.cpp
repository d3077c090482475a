#include <bit>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/escape.h"
#include "trainer/files/checkpoint/containers/pickle_classes.h"
#include "trainer/files/checkpoint/containers/pickle_machine.h"
#include "trainer/files/checkpoint/containers/value_parts.h"

namespace trellis::checkpoint {
namespace {

constexpr unsigned char kMark = '(', kPop = '0', kPopMark = '1', kDup = '2', kFrame = 0x95,
                        kProto = 0x80;
constexpr unsigned kNewestProtocol = 5;

/// Text of a line of UTF-8 bytes as Latin-1: what _codecs.encode(text, 'latin1') gives.
bool to_latin1(const std::string& text, std::string& bytes) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x80) {
      bytes += text[i];
    } else if ((c == 0xC2 || c == 0xC3) && i + 1 < text.size()) {
      bytes += static_cast<char>((c << 6) | (static_cast<unsigned char>(text[++i]) & 0x3F));
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

void PickleMachine::step(unsigned char opcode) {
  switch (opcode) {
    case kProto:
      if (const std::uint64_t protocol = little(1); protocol < 2 || protocol > kNewestProtocol)
        fail("protocol " + std::to_string(protocol) + "; expected 2 to 5");
      return;
    case kFrame:
      if (little(8) > bytes_.size() - at_) fail("a frame longer than the file");
      return;
    case kMark: return marks_.push_back(stack_.size());
    case kPop:
      if (!marks_.empty() && marks_.back() == stack_.size())
        marks_.pop_back();
      else
        (void)pop();
      return;
    case kPopMark: return (void)pop_to_mark();
    case kDup: return push(top());
    default: break;
  }
  if (step_scalar(opcode) || step_text(opcode) || step_container(opcode) || step_class(opcode) ||
      step_memo(opcode))
    return;
  fail("not an opcode that is read; expected a pickle of protocol 2 to 5 with plain data");
}

bool PickleMachine::step_scalar(unsigned char opcode) {
  switch (opcode) {
    case 'N': push({}); return true;
    case 0x88: push(true); return true;
    case 0x89: push(false); return true;
    case 'J': push(std::int64_t{static_cast<std::int32_t>(little(4))}); return true;
    case 'K': push(static_cast<std::int64_t>(little(1))); return true;
    case 'M': push(static_cast<std::int64_t>(little(2))); return true;
    case 0x8a: push(long_int(little(1))); return true;
    case 0x8b: push(long_int(little(4))); return true;
    case 'G': {
      const std::uint64_t reversed = little(8);
      push(std::bit_cast<double>(__builtin_bswap64(reversed)));
      return true;
    }
    default: return false;
  }
}

bool PickleMachine::step_text(unsigned char opcode) {
  const auto text = [this](int width) { return std::string(take(little(width))); };
  switch (opcode) {
    case 'T':  // Python 2's str
    case 'X': push(text(4)); return true;
    case 'U':
    case 0x8c: push(text(1)); return true;
    case 0x8d: push(text(8)); return true;
    case 'B': push(Value::bytes(text(4))); return true;
    case 'C': push(Value::bytes(text(1))); return true;
    case 0x8e:
    case 0x96: push(Value::bytes(text(8))); return true;
    default: return false;
  }
}

bool PickleMachine::step_container(unsigned char opcode) {
  const auto tuple_of = [this](int count) {
    Value::List items(static_cast<std::size_t>(count));
    for (int i = count; i-- > 0;) items[static_cast<std::size_t>(i)] = pop();
    push_node(Value::tuple(std::move(items)));
  };
  switch (opcode) {
    case ')': push_node(Value::tuple({})); return true;
    case 't': push_node(Value::tuple(pop_to_mark())); return true;
    case 0x85: tuple_of(1); return true;
    case 0x86: tuple_of(2); return true;
    case 0x87: tuple_of(3); return true;
    case ']': push_node(Value::list()); return true;
    case 'l': push_node(Value::list(pop_to_mark())); return true;
    case 0x8f: push_node(Value::list({}, "builtins.set")); return true;
    case 0x91: push_node(Value::list(pop_to_mark(), "builtins.frozenset")); return true;
    case '}': push_node(Value::dict()); return true;
    case 'd': {
      const Value::List items = pop_to_mark();
      push_node(Value::dict());
      set_items(items);
      return true;
    }
    case 'a': {
      Value item = pop();
      append({std::move(item)});
      return true;
    }
    case 'e':
    case 0x90: append(pop_to_mark()); return true;
    case 's': {
      Value value = pop(), key = pop();
      set_items({std::move(key), std::move(value)});
      return true;
    }
    case 'u': set_items(pop_to_mark()); return true;
    default: return false;
  }
}

void PickleMachine::append(Value::List items) {
  const Value& list = top();
  if (!list.is(Value::Kind::kList)) fail("appends to what is no list");
  Value::List& all = std::get<std::shared_ptr<ValueSequence>>(list.content_)->items;
  all.insert(all.end(), std::make_move_iterator(items.begin()),
             std::make_move_iterator(items.end()));
}

void PickleMachine::set_items(const Value::List& items) {
  const Value& dict = top();
  if (!dict.is_dict()) fail("sets a key of what is no dict");
  if (items.size() % 2 != 0) fail("a key without a value");
  ValueDict& content = *std::get<std::shared_ptr<ValueDict>>(dict.content_);
  try {
    for (std::size_t i = 0; i < items.size(); i += 2) {
      const Value& key = items[i];
      spend(key.is_string() ? key.as_string().size() : key_text(key).size());
      content.set(key, items[i + 1]);
    }
  } catch (const ConfigError& error) {
    if (std::string(error.what()).starts_with(options_.where + ": ")) throw;
    fail(error.what());
  }
}

bool PickleMachine::step_class(unsigned char opcode) {
  switch (opcode) {
    case 'c': {
      const std::string module(line()), name(line());
      name_class(module, name);
      return true;
    }
    case 0x93: {
      const Value name = pop(), module = pop();
      if (!name.is_string() || !module.is_string()) fail("a class name that is no text");
      name_class(module.as_string(), name.as_string());
      return true;
    }
    case 'Q': {
      if (!options_.persistent) fail("a persistent id, which this file cannot have");
      const Value id = pop();
      push_node(options_.persistent(id));
      return true;
    }
    case 'R': {
      const Value arguments = pop(), callee = pop();
      reduce(callee, arguments);
      return true;
    }
    case 0x81: {
      const Value arguments = pop(), callee = pop();
      new_object(callee, arguments);
      return true;
    }
    case 'b': build(pop()); return true;
    default: return false;
  }
}

bool PickleMachine::step_memo(unsigned char opcode) {
  switch (opcode) {
    case 'q': remember(little(1)); return true;
    case 'r': remember(little(4)); return true;
    case 0x94: remember(memo_count_); return true;
    case 'h': recall(little(1)); return true;
    case 'j': recall(little(4)); return true;
    default: return false;
  }
}

void PickleMachine::name_class(const std::string& module, const std::string& name) {
  const std::string full = python3_name(module, name);
  if (!is_plain_class(full) && !options_.classes.contains(full)) {
    fail("names '" + terminal_line(full) +
         "', which is not among the plain classes that a checkpoint may hold; nothing was run");
  }
  push_node(Value::named(full));
}

void PickleMachine::reduce(const Value& callee, const Value& arguments) {
  if (!callee.is(Value::Kind::kObject) || callee.as_object().form != ValueObject::Form::kName ||
      !arguments.is(Value::Kind::kTuple))
    fail("a call of what is no class");
  push_node(apply(callee.as_object().class_name, arguments.items()));
}

Value::List PickleMachine::copied(const Value::List& arguments) {
  if (arguments.empty()) return {};
  spend(arguments[0].items().size() * sizeof(Value));
  return arguments[0].items();
}

Value PickleMachine::encoded(const Value::List& arguments) {
  std::string bytes;
  if (arguments.empty()) return Value::bytes("");
  if (arguments[0].is_string()) spend(arguments[0].as_string().size());
  if (arguments[0].is(Value::Kind::kBytes)) return arguments[0];
  if (!arguments[0].is_string())
    fail("bytes of a " + std::string(Value::name(arguments[0].kind())));
  if (arguments.size() != 2 || !arguments[1].is_string() || arguments[1].as_string() != "latin1" ||
      !to_latin1(arguments[0].as_string(), bytes))
    fail("bytes in another encoding than latin1");
  return Value::bytes(std::move(bytes));
}

Value PickleMachine::apply(const std::string& name, const Value::List& arguments) {
  try {
    if (options_.call) {
      if (std::optional<Value> value = options_.call(name, arguments)) return *value;
    }
    if (name == "_codecs.encode" || name == "builtins.bytes" || name == "builtins.bytearray")
      return encoded(arguments);
    if (name == "torch.Size" || name == "builtins.tuple")
      return Value::tuple(copied(arguments), name == "torch.Size" ? name : "");
    if (name == "builtins.set" || name == "builtins.frozenset" || name == "builtins.list")
      return Value::list(copied(arguments), name == "builtins.list" ? "" : name);
    if (name == "collections.OrderedDict" || name == "builtins.dict") {
      Value dict = Value::dict({}, name == "builtins.dict" ? "" : name);
      for (const Value& item : copied(arguments)) {
        spend(key_text(item.items().at(0)).size());
        dict.set(item.items().at(0), item.items().at(1));
      }
      return dict;
    }
    if (name == "collections.Counter" && !arguments.empty()) return arguments[0];
    if (name == "collections.defaultdict") return Value::dict();
    if (name == "torch.serialization._get_layout" && arguments.size() == 1)
      return Value::named(arguments[0].as_string());
    if (name == "copyreg._reconstructor" && arguments.size() == 3)
      return Value::instance(arguments[0].class_name(), {});
  } catch (const ConfigError& error) {
    if (std::string(error.what()).starts_with(options_.where + ": ")) throw;
    fail(name + ": " + error.what());
  } catch (const std::out_of_range&) {
    fail(name + ": an argument is missing");
  }
  return Value::object(
      {.form = ValueObject::Form::kCall, .class_name = name, .arguments = arguments});
}

void PickleMachine::new_object(const Value& callee, const Value& arguments) {
  if (!callee.is(Value::Kind::kObject) || callee.as_object().form != ValueObject::Form::kName ||
      !arguments.is(Value::Kind::kTuple))
    fail("an instance of what is no class");
  const std::string& name = callee.as_object().class_name;
  if (name.starts_with("builtins.") || name.starts_with("collections.") || name == "torch.Size")
    return push_node(apply(name, arguments.items()));
  push_node(Value::object(
      {.form = ValueObject::Form::kInstance, .class_name = name, .arguments = arguments.items()}));
}

void PickleMachine::build(const Value& state) {
  const Value& target = top();
  if (target.is_dict()) {
    std::get<std::shared_ptr<ValueDict>>(target.content_)->attributes = state;
  } else if (target.is(Value::Kind::kObject) &&
             target.as_object().form != ValueObject::Form::kName) {
    std::get<std::shared_ptr<ValueObject>>(target.content_)->state = state;
  } else {
    fail(std::string("a state for a ") + Value::name(target.kind()));
  }
}

}  // namespace trellis::checkpoint
