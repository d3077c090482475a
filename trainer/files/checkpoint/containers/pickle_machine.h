#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trainer/files/checkpoint/containers/pickle.h"
#include "trainer/files/checkpoint/containers/value.h"

namespace trellis::checkpoint {

/// Runs the opcodes of one pickle over data. While it runs, values refer to shared nodes, as in
/// Python; run() checks what came out: no cycles, no depth, no explosion.
class PickleMachine {
 public:
  PickleMachine(std::span<const std::byte> bytes, const PickleOptions& options);
  ~PickleMachine();
  PickleMachine(const PickleMachine&) = delete;
  PickleMachine& operator=(const PickleMachine&) = delete;
  [[nodiscard]] Value run();

 private:
  /// Size of a node when everything in it that is shared is written out.
  struct Extent {
    int depth = 0;  ///< 0: being measured
    std::uint64_t values = 0;
  };

  [[noreturn]] void fail(const std::string& what) const;
  // Bytes.
  [[nodiscard]] std::string_view take(std::uint64_t count);
  [[nodiscard]] std::uint64_t little(int bytes);
  [[nodiscard]] std::string_view line();
  [[nodiscard]] std::int64_t long_int(std::uint64_t bytes);
  /// Counts bytes that a few opcodes copy, which a pickle could let grow without end.
  void spend(std::size_t bytes);
  // Stack and memo.
  void push(Value value);
  void push_node(Value value);  ///< of a new node, which is kept track of
  [[nodiscard]] Value pop();
  [[nodiscard]] Value& top();
  [[nodiscard]] Value::List pop_to_mark();
  void remember(std::uint64_t index);
  void recall(std::uint64_t index);
  // Opcodes; false: not of this group.
  void step(unsigned char opcode);
  bool step_scalar(unsigned char opcode);
  bool step_text(unsigned char opcode);
  bool step_container(unsigned char opcode);
  bool step_class(unsigned char opcode);
  bool step_memo(unsigned char opcode);
  // Parts of opcodes.
  void append(Value::List items);
  void set_items(const Value::List& items);
  void name_class(const std::string& module, const std::string& name);
  void reduce(const Value& callee, const Value& arguments);
  [[nodiscard]] Value apply(const std::string& name, const Value::List& arguments);
  void new_object(const Value& callee, const Value& arguments);
  void build(const Value& state);
  [[nodiscard]] Value encoded(const Value::List& arguments);
  [[nodiscard]] Value::List copied(const Value::List& arguments);
  // After the run.
  Extent measure(const Value& value, int above);
  [[nodiscard]] static const void* node_of(const Value& value);
  static void clear(const Value& value);

  std::span<const std::byte> bytes_;
  const PickleOptions& options_;
  std::size_t at_ = 0, opcode_at_ = 0;
  unsigned char opcode_ = 0;
  std::uint64_t spent_ = 0;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Value> memo_;
  std::vector<bool> remembered_;
  std::uint64_t memo_count_ = 0;
  std::vector<Value>
      nodes_;  ///< every node that was made: the only owner of what is not in the result
  std::unordered_map<const void*, Extent> measured_;
};

}  // namespace trellis::checkpoint
