#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trainer/files/checkpoint/containers/value.h"

namespace trellis::checkpoint {

/// Content of a list or tuple.
struct ValueSequence {
  bool is_tuple = false;
  std::string class_name;
  Value::List items;
  friend bool operator==(const ValueSequence&, const ValueSequence&) = default;
};

/// Content of a dict: keys in the order of their insertion, found by hash.
class ValueDict {
 public:
  using Item = std::pair<Value, Value>;
  [[nodiscard]] std::size_t size() const { return items_.size(); }
  [[nodiscard]] bool empty() const { return items_.empty(); }
  [[nodiscard]] auto begin() const { return items_.begin(); }
  [[nodiscard]] auto end() const { return items_.end(); }
  [[nodiscard]] const Value* find(const Value& key) const;
  void set(const Value& key, Value value);
  void erase(const Value& key);

  friend bool operator==(const ValueDict& a, const ValueDict& b);

  std::string class_name;
  Value attributes;  ///< what a subclass instance carries in addition to its items, such as the
                     ///< _metadata of a state_dict; None: nothing

 private:
  std::vector<Item> items_;
  std::unordered_map<std::string, std::size_t> places_;  ///< canonical text of the key → index
};

/// A value that is neither scalar nor container, as the pickle describes it.
struct ValueObject {
  enum class Form {
    kName,      ///< the class or constant itself, such as torch.float32
    kCall,      ///< class_name(*arguments)
    kInstance,  ///< an instance made without a call: class.__new__(class, *arguments)
  };
  Form form = Form::kName;
  std::string class_name = {};  ///< "module.name"
  std::vector<Value> arguments = {};
  Value state =
      {};  ///< what __setstate__ or __dict__ gets; a dict for plain instances; None: nothing
  friend bool operator==(const ValueObject&, const ValueObject&) = default;
};

/// A text that two keys of a dict share exactly when they are equal. Throws ConfigError for what
/// Python cannot hash, and for keys nested deeper than 100 or longer than 1 MB.
[[nodiscard]] std::string key_text(const Value& key);

}  // namespace trellis::checkpoint
