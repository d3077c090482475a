#include "runtime/calls/comm_call.h"

#include <array>

#include <c10/util/StringUtil.h>

namespace trellis::runtime {

std::string_view name(CommOp op) {
  constexpr std::array<std::string_view, 12> kNames = {
      "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce",
      "gather",     "scatter",    "barrier",        "send",       "receive",   "new group"};
  return kNames[static_cast<std::size_t>(op)];
}

std::string_view name(Reduction reduction) {
  constexpr std::array<std::string_view, 9> kNames = {
      "", "sum", "average", "product", "min", "max", "bitwise and", "bitwise or", "bitwise xor"};
  return kNames[static_cast<std::size_t>(reduction)];
}

std::string describe(const CommCall& call) {
  std::string text(name(call.op));
  if (call.op == CommOp::kBarrier) return text;
  if (call.op == CommOp::kNewGroup)
    return c10::str(text, ", number ", call.elements, " that its rank makes");
  if (call.reduction != Reduction::kNone) text += c10::str(" ", name(call.reduction));
  text += c10::str(" of ", call.elements, " ", c10::toString(call.dtype));
  if (!call.parts.empty()) {
    text += c10::str(" in ", call.parts.size(), " tensors (", c10::Join(", ", call.parts), ")");
  }
  if (call.root >= 0) text += c10::str(" with root member ", call.root);
  if (call.op == CommOp::kSend || call.op == CommOp::kRecv)
    text += c10::str(" with tag ", call.tag);
  return text;
}

std::int64_t size_in_bytes(const CommCall& call) {
  if (call.op == CommOp::kNewGroup) return 0;
  return call.elements * static_cast<std::int64_t>(c10::elementSize(call.dtype));
}

bool matches(const CommCall& a, const CommCall& b) {
  const bool same_size =
      a.op == CommOp::kAllToAll || (a.elements == b.elements && a.parts == b.parts);
  return a.op == b.op && a.reduction == b.reduction && a.dtype == b.dtype && a.root == b.root &&
         same_size;
}

}  // namespace trellis::runtime
